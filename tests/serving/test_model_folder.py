"""A model that was saved and loaded is the model that was trained, in every bit; what does not fit is one sentence."""

from __future__ import annotations

import json
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import upcycled as up
from tests.serving import own_models
from tests.wording import has_all
from upcycled.core.errors import InputError
from upcycled.core.objective import like_targets

QUICK = {"algorithm": up.FedAvg(), "iterations": 4, "progress": False, "engine": "sequential"}


def federation(classes=2, scale=1.0, targets="classes", shape=(3,), **names):
    """Three clients with test samples; targets follow from the features, up to noise."""
    rng = np.random.default_rng(5)
    direction = rng.normal(size=(int(np.prod(shape)), max(classes, 2)))

    def part(n):
        x = (scale * rng.normal(size=(n, *shape))).astype(np.float32)
        outputs = x.reshape(n, -1) @ direction + scale * rng.normal(size=(n, max(classes, 2)))
        made = {"classes": outputs[:, :classes].argmax(1), "labels": (outputs > 0) * 1, "numbers": outputs[:, 0]}
        return x, made[targets]

    parts = [part(30) for _ in range(6)]
    xs, ys = zip(*parts, strict=True)
    given = {"num_classes": classes} if targets == "classes" and not names else {}
    test = (xs[3:], ys[3:])
    return up.FederatedData.from_arrays(xs[:3], ys[:3], test=test, targets=targets, **given, **names)


def tokens():
    rng = np.random.default_rng(1)
    xs, ys = [rng.integers(0, 12, (20, 5)) for _ in range(2)], [rng.integers(0, 2, 20) for _ in range(2)]
    return up.FederatedData.from_arrays(xs, ys, test=(xs, ys), num_classes=2, vocabulary=12)


def trained(data, **arguments):
    return up.train(data, **(QUICK | arguments))


def outputs_of(model, x):
    with torch.no_grad():
        return model(torch.from_numpy(x))


def assert_same(loaded, result, x):
    """The loaded model has every weight and buffer of the trained one, and gives the same bits."""
    assert loaded.model.training is False
    held, kept = result.model.state_dict(), loaded.model.state_dict()
    assert held.keys() == kept.keys()
    assert all(torch.equal(held[name], kept[name]) for name in held)
    assert torch.equal(outputs_of(loaded.model, x), outputs_of(result.model, x))


@pytest.mark.parametrize("projected", [False, True])
def test_auroc_of_a_loaded_model_is_that_of_the_trained_one(tmp_path, projected):
    metrics = pytest.importorskip("sklearn.metrics")
    data = federation(scale=40.0 if projected else 1.0)
    privacy = up.privacy.ErmOutput(norm_bound=1.0, noise_std=0.01) if projected else None
    result = trained(data, privacy=privacy, algorithm=up.FedProx(mu=1.0))
    loaded = up.load(result.save(tmp_path))
    assert_same(loaded, result, data.test.x)
    by_hand = outputs_of(result.model, data.test.x).double().softmax(1)[:, 1].numpy()
    found = loaded.predict_proba(data.test.x)[:, 1]
    score = metrics.roc_auc_score(data.test.y, found)
    assert score == metrics.roc_auc_score(data.test.y, by_hand) > 0.6
    if projected:
        # Without the map of its training the same weights rank samples otherwise.
        bare = nn.Linear(3, 2)
        bare.load_state_dict(load_file(tmp_path / "model.safetensors"))
        assert metrics.roc_auc_score(data.test.y, outputs_of(bare, data.test.x)[:, 1].numpy()) != score
        assert loaded.card.norm_bound == 1.0
    assert (loaded.predict(data.test.x) == data.test.y).mean() == pytest.approx(result.accuracy)


@pytest.mark.parametrize(
    ("data", "arguments", "options"),
    [
        (federation(3), {}, {"bias": True, "outputs": 3}),
        (federation(3), {"model_options": {"bias": False}}, {"bias": False, "outputs": 3}),
        (federation(4, shape=(2, 3)), {"model": "mlp"}, {"hidden": [196], "outputs": 4}),
        (federation(2), {"model": "mlp", "model_options": {"hidden": (5, 4)}}, {"hidden": [5, 4], "outputs": 2}),
        (
            tokens(),
            {"model": "lstm", "model_options": {"hidden": 3, "embedding": 4, "dropout": 0.5}},
            {"vocabulary": 12, "embedding": 4, "hidden": 3, "dropout": 0.5, "outputs": 2},
        ),
        (
            replace(tokens(), vectors=np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)),
            {"model": "lstm", "model_options": {"hidden": 3}},
            {"vocabulary": 12, "embedding": 6, "hidden": 3, "dropout": 0.0, "outputs": 2},
        ),
    ],
    ids=["logistic", "no bias", "mlp on images", "deep mlp", "lstm", "lstm with vectors"],
)
def test_every_model_of_the_package_comes_back(tmp_path, data, arguments, options):
    result = trained(data, iterations=1, **arguments)
    loaded = up.load(result.save(tmp_path))
    assert_same(loaded, result, data.test.x)
    assert loaded.card.options == options
    assert [p.requires_grad for p in loaded.model.parameters()] == [p.requires_grad for p in result.model.parameters()]
    logits = outputs_of(result.model, data.test.x)
    assert np.array_equal(loaded.predict(data.test.x), logits.argmax(1).numpy())
    exact = np.exp(logits.double().numpy())
    assert loaded.predict_proba(data.test.x) == pytest.approx(exact / exact.sum(1, keepdims=True))


def test_a_module_of_the_users_comes_back_by_its_factory_with_its_buffers(tmp_path):
    data = federation()
    for place, model in enumerate(("tests.serving.own_models:make", own_models.make)):
        result = trained(data, model=model, seed=7)
        assert result.model.shift.abs().sum() > 0
        folder = result.save(tmp_path / str(place))
        for allow in ("tests.serving.own_models", ["math", "tests.serving"], ("tests.serving.own_models:make",)):
            assert_same(up.load(folder, allow=allow), result, data.test.x)
        assert_same(up.load(folder, model=own_models.make), result, data.test.x)


def test_a_function_of_the_script_is_said_to_be_found_by_nobody_else(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(own_models.make, "__module__", "__main__")
    trained(federation(), model=own_models.make, seed=7).save(tmp_path)
    assert has_all(capsys.readouterr().err, "'make'", "model")


def test_a_module_without_a_name_comes_back_into_another_like_it(tmp_path):
    data, own = federation(), own_models.make()
    result = trained(data, model=own)
    result.save(tmp_path)
    with pytest.raises(InputError, match=r"up.load\(DIR, model=module\)"):
        up.load(tmp_path)
    given = own_models.Counted()
    before = {name: value.clone() for name, value in given.state_dict().items()}
    for model in (given, own_models.Counted):
        assert_same(up.load(tmp_path, model=model), result, data.test.x)
    assert all(torch.equal(before[name], value) for name, value in given.state_dict().items())
    unnamed = trained(data, model=lambda: own_models.Counted())
    with pytest.raises(InputError, match=r"name.*made"):
        up.load(unnamed.save(tmp_path))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Linear(3, 2), r"'weight'.*module"),
        (own_models.Counted(4, 2), r"'linear.weight'.*\(2, 3\).*\(2, 4\)"),
        (own_models.fails, r"RuntimeError.*weights"),
        (dict, "returned dict"),
    ],
)
def test_a_module_that_does_not_fit_is_refused_in_a_sentence(tmp_path, model, said):
    trained(federation(), model=own_models.make, iterations=1).save(tmp_path)
    with pytest.raises(InputError, match=said):
        up.load(tmp_path, model=model)


def test_classes_are_called_by_their_names(tmp_path):
    data = federation(2, label_names=("healthy", "ill"))
    loaded = up.load(trained(data).save(tmp_path))
    numbers = outputs_of(loaded.model, data.test.x).argmax(1).tolist()
    assert loaded.classes == ("healthy", "ill")
    assert loaded.predict(data.test.x).tolist() == [loaded.classes[number] for number in numbers]


def test_one_logit_gives_two_columns_as_elsewhere(tmp_path):
    data = federation()
    result = trained(data, loss=up.losses.BinaryCrossEntropy(class_weight=[1.0, 3.0]))
    loaded = up.load(result.save(tmp_path))
    logit = outputs_of(result.model, data.test.x).double().numpy()[:, 0]
    proba = loaded.predict_proba(data.test.x)
    # sigmoid(z) = 1 / (1 + exp(-z)) is the second class's.
    assert proba[:, 1] == pytest.approx(1 / (1 + np.exp(-logit)))
    assert proba.sum(1) == pytest.approx(1)
    assert loaded.predict(data.test.x).tolist() == (logit > 0).astype(int).tolist()
    assert loaded.card.loss == {"name": "binary_cross_entropy", "class_weight": [1.0, 3.0]}


@pytest.mark.parametrize("loss", ["mse", "huber", "quantile", "poisson"])
def test_numbers_are_answered_by_numbers_and_have_no_probabilities(tmp_path, loss):
    data = federation(targets="numbers")
    if loss == "poisson":
        data = replace(data, train=replace(data.train, y=data.train.y.clip(0)))
    result = trained(data, loss=loss)
    loaded = up.load(result.save(tmp_path))
    raw = like_targets(outputs_of(result.model, data.test.x), torch.from_numpy(data.test.y)).numpy()
    # The mean of a Poisson count is exp(z).
    assert loaded.predict(data.test.x) == pytest.approx(np.exp(raw) if loss == "poisson" else raw)
    assert loaded.predict(data.test.x).shape == data.test.y.shape
    assert loaded.classes is None
    with pytest.raises(InputError, match=r"probabilities.*predict"):
        loaded.predict_proba(data.test.x)


def test_labels_are_answered_by_rows_of_zeros_and_ones(tmp_path):
    data = federation(3, targets="labels")
    loaded = up.load(trained(data).save(tmp_path))
    logits = outputs_of(loaded.model, data.test.x).double().numpy()
    assert np.array_equal(loaded.predict(data.test.x), (logits > 0).astype(int))
    assert loaded.predict_proba(data.test.x) == pytest.approx(1 / (1 + np.exp(-logits)))
    assert loaded.classes == (0, 1, 2)


def doubled(outputs, targets):
    return 2 * torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


def margin(outputs, targets):
    return torch.relu(1 - outputs.squeeze(1) * (2.0 * targets - 1))


def test_a_loss_of_the_users_answers_by_the_largest_output_where_there_are_several(tmp_path):
    data = federation()
    loaded = up.load(trained(data, loss=doubled).save(tmp_path / "a"))
    assert loaded.predict(data.test.x).tolist() == outputs_of(loaded.model, data.test.x).argmax(1).tolist()
    assert loaded.card.loss == {"name": "doubled", "function": f"{__name__}:doubled"}
    single = up.load(trained(data, loss=margin, model=nn.Linear(3, 1)).save(tmp_path / "b"), model=nn.Linear(3, 1))
    with pytest.raises(InputError, match=r"'margin'.*class.*mean.*outputs"):
        single.predict(data.test.x)


def test_more_outputs_than_classes_have_columns_too(tmp_path):
    data = federation(2, label_names=("no", "yes"))
    loaded = up.load(trained(data, model=nn.Linear(3, 4)).save(tmp_path), model=nn.Linear(3, 4))
    assert loaded.classes == ("no", "yes", "2", "3")
    assert loaded.predict_proba(data.test.x).shape == (90, 4)


def test_arrays_tensors_lists_and_tables_give_the_same_answers(tmp_path):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    data = federation()
    named = replace(data, feature_names=("age", "dose", "bmi"), other_columns=("site", "y"))
    loaded, x = up.load(trained(named).save(tmp_path)), data.test.x[:7]
    expected = loaded.predict_proba(x)
    columns = {"bmi": x[:, 2], "y": ["?"] * 7, "age": x[:, 0], "dose": x[:, 1]}
    same = [x.astype(np.float64), x.tolist(), torch.from_numpy(x).requires_grad_(), np.asfortranarray(x)]
    for samples in (*same, pandas.DataFrame(columns), polars.DataFrame(columns)):
        assert np.array_equal(loaded.predict_proba(samples), expected)
    frame = pandas.DataFrame(columns)
    with pytest.raises(InputError, match=r"^x.*column 'dose'.*model.*trained.*did you mean"):
        loaded.predict(frame.rename(columns={"dose": "doses"}))
    with pytest.raises(InputError, match=r"^x.*column 'height'.*model.*trained"):
        loaded.predict(frame.assign(height=1.0))


def test_many_samples_are_answered_in_pieces_alike(tmp_path, monkeypatch):
    data = federation()
    loaded = up.load(trained(data).save(tmp_path))
    whole = loaded.predict_proba(data.test.x)
    monkeypatch.setattr("upcycled.serving.predictor._AT_ONCE", 7)
    assert loaded.predict_proba(data.test.x) == pytest.approx(whole)


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.zeros(3), r"^x.*shape \(3,\).*\(samples, 3\)$"),
        (np.zeros((2, 4)), r"^x.*shape \(2, 4\).*\(samples, 3\)$"),
        (np.zeros((0, 3)), r"^x.*samples"),
        (np.zeros((2, 3), dtype=np.uint8), r"^x.*uint8.*model.*trained.*float32"),
        ([[1.0, 2.0, 3.0], [1.0, np.nan, 3.0]], r"^x.*nan.*row 1, column 1"),
        ([[1.0, 2.0, 1e39]], r"^x.*1e\+39.*row 0, column 2"),
        ([["a", "b", "c"]], r"values.*<U1"),
        ([[1.0], [1.0, 2.0]], r"^x.*ragged"),
    ],
)
def test_samples_that_do_not_fit_are_refused_in_a_sentence(tmp_path, x, said):
    loaded = up.load(trained(federation(), iterations=1).save(tmp_path))
    with pytest.raises(InputError, match=said):
        loaded.predict(x)


def test_token_ids_are_whole_numbers_within_the_vocabulary(tmp_path):
    loaded = up.load(trained(tokens(), model="lstm", model_options={"hidden": 2}, iterations=1).save(tmp_path))
    assert loaded.predict([[0, 11, 3, 3, 1]]).shape == (1,)
    with pytest.raises(InputError, match="integer token ids"):
        loaded.predict([[0.5, 1, 2, 3, 4]])
    with pytest.raises(InputError, match="does not take these samples"):
        loaded.predict([[0, 1, 2, 3, 12]])


def test_whole_numbers_of_training_may_be_bytes(tmp_path):
    rng = np.random.default_rng(0)
    xs, ys = [rng.integers(0, 256, (20, 3)).astype(np.uint8)], [rng.integers(0, 2, 20)]
    loaded = up.load(trained(up.FederatedData.from_arrays(xs, ys)).save(tmp_path))
    assert np.array_equal(loaded.predict_proba(xs[0]), loaded.predict_proba(xs[0].astype(np.float32)))


def personal_run(**arguments):
    data = replace(federation(), client_names=("ann", "bob", "cid"))
    return data, trained(data, algorithm=up.PFedMe(inner_steps=2), participation=0.67, iterations=1, **arguments)


def test_personal_models_come_back_by_number_and_by_name(tmp_path):
    data, result = personal_run()
    loaded = up.load(result.save(tmp_path))
    took_part = sorted(result.personal_models)
    assert len(took_part) == 2
    for client in took_part:
        expected = outputs_of(result.personal_models[client], data.test.x)
        for called in (client, np.int64(client), data.name_of(client)):
            assert torch.equal(outputs_of(loaded.personal(called).model, data.test.x), expected)
    assert_same(loaded, result, data.test.x)
    absent = next(client for client in range(3) if client not in took_part)
    for called in (absent, data.name_of(absent), 17, "zoe", ""):
        with pytest.raises(InputError, match=r"^client.*personal model.*clients"):
            loaded.personal(called)


def test_personal_models_of_a_restricted_run_are_in_the_holders_folder_alone(tmp_path):
    clipping = up.privacy.ModelClipping(clip_norm=1.0, noise_std=1.0)
    data, result = personal_run(privacy=clipping, noise="system")
    folder = result.save(tmp_path / "saved")
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.safetensors", "private"]
    own = folder / "private" / "personal.safetensors"
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert stat.S_IMODE(own.parent.stat().st_mode) == 0o700
    client = min(result.private.personal_models)
    expected = outputs_of(result.private.personal_models[client], data.test.x)
    loaded = up.load(folder)
    assert torch.equal(outputs_of(loaded.personal(client).model, data.test.x), expected)
    # What everybody gets has no hash of, and no number from, what is the holder's own.
    own.unlink()
    own.parent.rmdir()
    assert_same(up.load(folder), result, data.test.x)
    with pytest.raises(InputError, match="personal models"):
        loaded.personal(client)


def test_personal_models_of_another_model_are_refused(tmp_path):
    _, result = personal_run()
    result.save(tmp_path)
    _, other = personal_run(seed=3)
    loaded = up.load(replace(other, personal_models=None).save(tmp_path))
    with pytest.raises(InputError, match=r"personal.safetensors: damaged.*model.safetensors"):
        loaded.personal(min(result.personal_models))


def test_a_model_says_what_is_claimed_of_its_privacy(tmp_path):
    data = federation()
    clipping = up.privacy.ModelClipping(clip_norm=1.0, epsilon=3.0, delta=1e-4)
    result = trained(data, privacy=clipping, ledger=tmp_path / "ledger.jsonl")
    stated = up.load(result.save(tmp_path / "model")).privacy
    assert (stated.mechanism, stated.is_simulation, stated.unit) == ("model_clipping", True, "record")
    assert stated.epsilon == pytest.approx(3.0)
    assert stated.delta == 1e-4
    assert str(stated) == result.privacy.statement(1e-4)
    assert str(stated).startswith("simulation: not private")
    assert "honest-but-curious server" in stated.adversary
    # The ledger's file can be held against what the model says.
    assert up.privacy.Ledger.read(tmp_path / "ledger.jsonl", head=stated.head).chain == "anchored"
    document = json.loads((tmp_path / "model" / "model.json").read_text())["privacy"]
    assert document["is_simulation"] is True
    assert document["epsilon"] == stated.epsilon


def test_real_noise_is_no_simulation_and_what_is_not_proven_is_no_epsilon(tmp_path):
    data = federation()
    real = trained(data, privacy=up.privacy.ModelClipping(1.0, 1.0), noise="system")
    assert up.load(real.save(tmp_path)).privacy.is_simulation is False
    hopeless = trained(data, privacy=up.privacy.ModelClipping(clip_norm=1.0, noise_std=0.0))
    stated = up.load(hopeless.save(tmp_path)).privacy
    assert stated.epsilon is None
    assert up.load(trained(data).save(tmp_path)).privacy is None


def spoil_weights(folder):
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)


def other_weights(folder):
    save_file({"weight": torch.zeros(2, 3)}, folder / "model.safetensors")


def change(**changes):
    def changed(folder):
        document = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps(document | changes))

    return changed


def without(name):
    return lambda folder: (folder / name).unlink()


def cut(name, keep=20):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (
            spoil_weights,
            r"model.safetensors: damaged.*model.json",
        ),
        (
            other_weights,
            r"model.safetensors: damaged.*model.json",
        ),
        (cut("model.safetensors"), "model.safetensors: damaged"),
        (cut("model.json"), "model.json: damaged"),
        (cut("model.json", 0), "model.json: damaged"),
        (lambda folder: (folder / "model.json").write_text("[]"), "model.json: damaged"),
        (lambda folder: (folder / "model.json").write_bytes(b"\xff"), "model.json: damaged"),
        (change(options=3), "model.json: damaged"),
        (change(kind="oracle"), "model.json: damaged"),
        (change(link="cosine"), "model.json: damaged"),
        (change(shape="wide"), "model.json: damaged"),
        (change(privacy={}), "model.json: damaged"),
        (change(options={"bias": True}), r"damaged \(KeyError: 'outputs'\); expected.*options.*model"),
        (change(shape=[4]), r"'weight'.*\(2, 3\).*\(2, 4\)"),
        (change(format=3), r"model.json.*format 3.*version.*upcycled.*format 2"),
        (change(format="1"), r"model.json.*format '1'"),
        (without("model.json"), r"model.json"),
        (without("model.safetensors"), r"model.safetensors.*\(No such file or directory\)"),
    ],
)
def test_damage_is_said_in_one_sentence(tmp_path, harm, said):
    trained(federation(), iterations=1).save(tmp_path)
    harm(tmp_path)
    with pytest.raises(InputError, match=said) as raised:
        up.load(tmp_path)
    assert "\n" not in str(raised.value)
    assert str(tmp_path) in str(raised.value)


def test_a_damaged_file_of_personal_models_is_said_in_one_sentence(tmp_path):
    _, result = personal_run()
    result.save(tmp_path)
    cut("personal.safetensors")(tmp_path)
    with pytest.raises(InputError, match=r"personal.safetensors: damaged"):
        up.load(tmp_path).personal(0)


def test_a_folder_must_hold_one_model(tmp_path):
    with pytest.raises(InputError, match=r"model.json.*finished"):
        up.load(tmp_path)
    with pytest.raises(InputError, match="is no folder"):
        up.load(tmp_path / "nowhere")
    result = trained(federation(), iterations=1)
    # A private folder on the way to the results is no matter; one inside them is never looked into.
    results = tmp_path / "private" / "results"
    result.save(results / "seed-0")
    result.save(results / "seed-0" / "private")
    assert up.load(results).folder == results / "seed-0"
    result.save(results / "seed-1")
    with pytest.raises(InputError, match=r"2 models.*seed-0, .*seed-1$"):
        up.load(results)


def test_a_factory_that_is_not_there_is_one_sentence_with_a_way_out(tmp_path):
    trained(federation(), model=own_models.make, iterations=1).save(tmp_path)
    for name, said in (("nowhere_at_all:make", "there is no module 'nowhere_at_all'"), ("math:make", "has no 'make'")):
        change(factory=name)(tmp_path)
        with pytest.raises(InputError, match=said) as raised:
            up.load(tmp_path, allow=name.partition(":")[0])
        assert has_all(str(raised.value), "module", "up.load(DIR, model=module)")


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A module that leaves a file when it is imported, and one when its function is called."""
    code = tmp_path / "code"
    (code / "planted_package").mkdir(parents=True)
    (code / "planted_package" / "__init__.py").touch()
    text = "from pathlib import Path\nfrom tests.serving.own_models import make\n{}\ndef run(): {}\n"
    leaves = [f"Path({str(tmp_path / name)!r}).touch()" for name in ("imported", "called")]
    (code / "planted_package" / "planted.py").write_text(text.format(*leaves))
    (code / "planted_package_too.py").write_text(text.format(*leaves))
    monkeypatch.syspath_prepend(str(code))
    return tmp_path


@pytest.mark.parametrize("allow", [(), "tests", "planted", "planted_package.plant", ["planted_package.planted:make"]])
@pytest.mark.parametrize("name", ["planted_package.planted:run", "planted_package_too:run"])
def test_code_that_is_not_allowed_is_neither_imported_nor_called(planted, name, allow):
    trained(federation(), model=own_models.make, iterations=1).save(planted / "model")
    change(factory=name)(planted / "model")
    with pytest.raises(InputError, match=rf"'{name}'.*pass allow='{name.partition(':')[0]}'"):
        up.load(planted / "model", **({"allow": allow} if allow else {}))
    assert not (planted / "imported").exists()
    assert not (planted / "called").exists()


@pytest.mark.parametrize("name", ["http.server:test", "upcycled.cli.main:main", "os:abort"])
def test_a_function_of_another_package_is_not_run(tmp_path, name):
    trained(federation(), model=own_models.make, iterations=1).save(tmp_path)
    change(factory=name)(tmp_path)
    with pytest.raises(InputError, match="expected code"):
        up.load(tmp_path, allow="tests.serving.own_models")


def test_an_allowed_module_does_not_allow_what_it_imports(planted):
    trained(federation(), model=own_models.make, iterations=1).save(planted / "model")
    for name in ("planted_package.planted:make", "planted_package.planted:Path.cwd"):
        change(factory=name)(planted / "model")
        with pytest.raises(InputError, match="allowed module"):
            up.load(planted / "model", allow="planted_package")
    change(factory="planted_package.planted:make")(planted / "model")
    up.load(planted / "model", allow="planted_package.planted:make")
    up.load(planted / "model", allow=("planted_package", "tests.serving.own_models"))


@pytest.mark.parametrize("allow", ["", [""], [None], {"a": 1}])
def test_what_is_no_name_of_a_module_allows_nothing(tmp_path, allow):
    folder = trained(federation(), model=own_models.make, iterations=1).save(tmp_path)
    with pytest.raises(InputError, match="expected code"):
        up.load(folder, allow=allow)


def test_a_model_is_saved_over_another_or_not_at_all(tmp_path, monkeypatch):
    data = federation()
    first, second = trained(data, iterations=1), trained(data, iterations=2)
    first.save(tmp_path)

    def full(handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("upcycled._utils.files.os.fsync", full)
        with pytest.raises(up.UpcycledError, match="No space left on device"):
            second.save(tmp_path)
    assert_same(up.load(tmp_path), first, data.test.x)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "model.safetensors"]
    assert_same(up.load(second.save(tmp_path)), second, data.test.x)


def test_tied_weights_stay_tied(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(torch.relu(self.first(x)))

    data = federation(3)
    result = trained(data, model=Tied())
    loaded = up.load(result.save(tmp_path), model=Tied())
    assert loaded.model.first.weight is loaded.model.second.weight
    assert_same(loaded, result, data.test.x)
