import argparse
import json

import numpy as np
import pytest

from upcycled.cli.data import add_parser
from upcycled.core.errors import InputError
from upcycled.data import load, partition, save, synthetic


@pytest.fixture
def upcycled(capsys):
    """Run ``upcycled data ...`` and return (exit code, standard output, standard error)."""
    parser = argparse.ArgumentParser(prog="upcycled")
    add_parser(parser.add_subparsers(required=True))

    def run(*words):
        args = parser.parse_args(["data", *map(str, words)])
        code = args.run(args)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def pool(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)).astype(np.float32), np.repeat([0, 1, 2], 20)
    np.savez(tmp_path / "pool.npz", train_x=x, train_y=y, train_site=np.arange(60) % 4)
    return tmp_path / "pool.npz"


def test_make_synthetic_writes_the_same_data_as_the_library(upcycled, tmp_path):
    out = tmp_path / "a.npz"
    words = ("--clients", 3, "--dim", 4, "--num-classes", 5, "--samples", 30, "--test-fraction", 0.2, "--seed", 7)
    code, shown, chatter = upcycled("make", "synthetic", out, "--alpha", 0.5, "--beta", 1, *words)
    expected = synthetic(0.5, 1.0, clients=3, dim=4, num_classes=5, sizes=30, test_fraction=0.2, seed=7)
    found = load(out)
    assert code == 0
    assert np.array_equal(found.train.x, expected.train.x)
    assert np.array_equal(found.test.y, expected.test.y)
    assert found.num_classes == 5
    assert "mean 24.0" in shown
    assert chatter == f"wrote {out}\n"


def test_make_synthetic_iid(upcycled, tmp_path):
    assert upcycled("make", "synthetic", tmp_path / "a.npz", "--iid", "--samples", 10)[0] == 0
    assert np.array_equal(load(tmp_path / "a.npz").train.x, synthetic("iid", sizes=10).train.x)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("iid", "--clients", 4), lambda y: partition.iid(y, 4, 1)),
        (
            ("iid", "--clients", 4, "--sigma", 1),
            lambda y: partition.iid(y, 4, 1, partition.lognormal_sizes(60, 4, 1.0, 1)),
        ),
        (("dirichlet", "--clients", 4, "--alpha", 0.3), lambda y: partition.dirichlet(y, 4, 0.3, 1)),
        (("classes", "--clients", 6, "--classes-per-client", 2), lambda y: partition.by_classes(y, 6, 2, 1)),
        (("column", "--column", "site"), lambda y: partition.by_column(np.arange(60) % 4)),
    ],
)
def test_make_partition_deals_a_pool_out(upcycled, pool, tmp_path, words, parts):
    out = tmp_path / "out.npz"
    code, _, _ = upcycled("make", "partition", pool, out, "--scheme", *words, "--seed", 1, "--test-fraction", 0)
    with np.load(pool) as file:
        x, y = file["train_x"], file["train_y"]
    expected = parts(y)
    found = load(out)
    assert code == 0
    assert found.sizes.tolist() == [len(part) for part in expected]
    assert np.array_equal(found.train.x, x[np.concatenate(expected)])
    assert np.array_equal(found.train.y, y[np.concatenate(expected)])


def test_clients_made_of_a_column_keep_its_values_as_names(upcycled, tmp_path):
    (tmp_path / "a.csv").write_text("city,label,a\nOslo,0,1\nBern,1,2\nOslo,1,3\n")
    out = tmp_path / "out.npz"
    words = ("--scheme", "column", "--column", "city", "--test-fraction", 0)
    upcycled("make", "partition", tmp_path / "a.csv", out, *words)
    found = load(out)
    assert found.client_names == ("Bern", "Oslo")
    assert found.train.x.ravel().tolist() == [2, 1, 3]


def test_describe_prints_the_numbers_as_a_table_or_as_one_json_document(upcycled, tmp_path):
    save(synthetic("iid", clients=3, sizes=20), tmp_path / "a.npz")
    code, shown, chatter = upcycled("describe", tmp_path / "a.npz")
    assert (code, chatter) == (0, "")
    assert "mean 18.0, sd 0.0, min 18, max 18" in shown
    code, shown, chatter = upcycled("describe", tmp_path / "a.npz", "--json")
    assert (code, chatter) == (0, "")
    document = json.loads(shown)
    assert (document["clients"], document["samples"], document["test_samples"]) == (3, 54, 6)
    assert sum(document["class_counts"]) == 54


def test_describe_reads_tables_by_their_columns(upcycled, tmp_path):
    (tmp_path / "a.csv").write_text("who,y,a,b,part\n1,0,1,2,0\n1,1,3,4,0\n2,2,5,6,0\n2,1,5,6,1\n")
    words = ("--client", "who", "--label", "y", "--features", "a, b", "--split", "part", "--json")
    document = json.loads(upcycled("describe", tmp_path / "a.csv", *words)[1])
    assert (document["clients"], document["samples"], document["test_samples"]) == (2, 3, 1)
    assert (document["features"], document["classes"]) == ([2], 3)


def test_names_in_files_are_never_taken_for_markup(upcycled, tmp_path):
    data = synthetic("iid", clients=2, sizes=20)
    save(data, tmp_path / "[bold]a.npz")
    assert "[bold]a.npz" in upcycled("describe", tmp_path / "[bold]a.npz")[1].replace("\n", "")


def test_check_says_ok_or_raises_the_sentence(upcycled, tmp_path):
    save(synthetic("iid", clients=3, sizes=20, seed=3), tmp_path / "a.npz")
    code, shown, _ = upcycled("check", tmp_path / "a.npz")
    assert (code, shown) == (0, f"OK: {tmp_path / 'a.npz'} has 3 clients, 54 samples, 2 classes, 6 test samples\n")
    assert json.loads(upcycled("check", tmp_path / "a.npz", "--json")[1])["ok"] is True
    (tmp_path / "b.csv").write_text("client,label,a\n1,0,2\n1,-1,3\n")
    with pytest.raises(InputError, match=r"b.csv.*client 1.*-1.*row 1"):
        upcycled("check", tmp_path / "b.csv")


def test_list_shows_the_files_of_the_data_folder(upcycled, tmp_path, monkeypatch):
    array = np.zeros((1, 1))
    np.savez(tmp_path / "two.npz", b_train_x=array, a_train_x=array)
    monkeypatch.setenv("UPCYCLED_DATA", str(tmp_path))
    code, shown, _ = upcycled("list")
    assert code == 0
    assert "two.npz" in shown
    assert "a, b" in shown
    document = json.loads(upcycled("list", "--json")[1])
    assert document["folder"] == str(tmp_path)
    assert document["files"] == [{"file": "two.npz", "kind": "npz", "sets": ["a", "b"], "problem": None}]
    assert any("synthetic" in source for source in document["sources"])


def test_list_without_a_data_folder_says_how_to_have_one(upcycled, tmp_path, monkeypatch):
    monkeypatch.delenv("UPCYCLED_DATA", raising=False)
    code, shown, chatter = upcycled("list")
    assert code == 0
    assert "synthetic iid" in shown
    assert "UPCYCLED_DATA" in chatter
    monkeypatch.setenv("UPCYCLED_DATA", str(tmp_path / "no"))
    with pytest.raises(InputError, match=r"^UPCYCLED_DATA.*'.*no'"):
        upcycled("list")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("synthetic", "OUT.npz"), r"--iid.*--alpha.*--iid.*--alpha.*--beta"),
        (("synthetic", "OUT.npz", "--iid", "--alpha", 1), r"--iid.*--alpha"),
        (("synthetic", "OUT.npz", "--iid", "--beta", 1), r"beta.*1.0.*alpha.*'iid'"),
        (("synthetic", "OUT.npz", "--alpha", 1), r"beta.*None.*>= 0"),
        (("synthetic", "OUT.csv", "--iid"), r"OUT.*'.*OUT.csv'.*.npz"),
        (("synthetic", "no/OUT.npz", "--iid"), r"OUT.*'.*OUT.npz'"),
        (("synthetic", "OUT.npz", "--iid", "--clients", 0), r"clients.*0.*integer >= 1"),
        (("partition", "POOL", "OUT.npz", "--scheme", "iid"), r"--clients.*missing"),
        (
            ("partition", "POOL", "OUT.npz", "--scheme", "iid", "--clients", 2, "--alpha", 1),
            r"--alpha.*1.0",
        ),
        (("partition", "POOL", "OUT.npz", "--scheme", "column"), r"--column.*missing.*column"),
        (
            ("partition", "POOL", "OUT.npz", "--scheme", "column", "--column", "sit"),
            r"array train_sit.*did you mean 'site'",
        ),
        (("partition", "POOL", "OUT.npz", "--scheme", "iid", "--clients", 61), r"clients.*61"),
    ],
)
def test_a_wrong_make_is_answered_by_its_sentence_and_writes_nothing(upcycled, pool, tmp_path, words, sentence):
    places = {"POOL": pool}
    words = [places.get(word, tmp_path / word if "OUT" in str(word) else word) for word in words]
    with pytest.raises(InputError, match=sentence):
        upcycled("make", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["pool.npz"]


def test_an_existing_file_is_overwritten_only_by_force(upcycled, tmp_path):
    out = tmp_path / "a.npz"
    upcycled("make", "synthetic", out, "--iid", "--samples", 10)
    before = out.read_bytes()
    with pytest.raises(InputError, match=r"already.*--force\)"):
        upcycled("make", "synthetic", out, "--iid", "--samples", 20)
    assert out.read_bytes() == before
    upcycled("make", "synthetic", out, "--iid", "--samples", 20, "--force")
    assert load(out).sizes[0] == 18


def test_json_of_make_is_alone_on_standard_output(upcycled, tmp_path):
    _, shown, chatter = upcycled("make", "synthetic", tmp_path / "a.npz", "--iid", "--samples", 10, "--json")
    assert json.loads(shown)["samples"] == 270
    assert "wrote" in chatter


@pytest.mark.parametrize("words", [(), ("make",), ("describe",), ("make", "partition", "a.npz", "b.npz")])
def test_an_incomplete_command_ends_with_exit_code_2(upcycled, words):
    with pytest.raises(SystemExit) as end:
        upcycled(*words)
    assert end.value.code == 2


def test_check_gives_hints_about_what_is_allowed_and_often_a_slip(upcycled, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("client,label,a\n a,1,1\na,2,2\nA,1,3\nb,2,4\n")
    expected = [
        "no sample has the label 0 of the 3 classes (labels count from 0)",
        "' a', 'A', 'a' are different clients, though their names are nearly the same",
        "class '1' of 'label' has no sample at 'b'",
        "class '2' of 'label' has no sample at 'A'",
    ]
    code, shown, _ = upcycled("check", path)
    first, *lines = shown.splitlines()
    assert (code, first) == (0, f"OK: {path} has 4 clients, 4 samples, 3 classes, 0 test samples")
    assert lines[0].startswith("read off the data: classes, dtype, vocabulary ")
    assert lines[1:] == [f"hint: {text}" for text in expected]
    assert json.loads(upcycled("check", path, "--json")[1])["hints"] == expected


def test_make_partition_tells_how_many_copies_there_are(upcycled, tmp_path):
    x = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    x[90:] = x[:10]
    np.savez(tmp_path / "pool.npz", train_x=x, train_y=np.arange(100) % 2)
    out = tmp_path / "out.npz"
    code, _, chatter = upcycled("make", "partition", tmp_path / "pool.npz", out, "--scheme", "iid", "--clients", 4)
    found = load(out)
    train, test = ({row.tobytes() for row in part.x} for part in (found.train, found.test))
    assert code == 0
    assert not train & test
    assert f"hint: {found.train.num_rows - len(train)} of {found.train.num_rows} training samples are copies" in chatter


def test_check_says_what_was_read_off_and_what_would_be_repaired(upcycled, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("client,f,label\na,1,no\na,,yes\nb,3,perhaps\n")
    _, shown, _ = upcycled("check", path, "--label-names", "no,yes", "--repair")
    assert shown.splitlines() == [
        f"OK: {path} has 2 clients, 3 samples, 2 classes, 0 test samples",
        "repaired: y: 1 labels that are no class count as class 0, the first of client 'b' at row 0 (counted from 0)",
        "repaired: x: 1 values that are not a finite float32 count as 0, the first of client 'a' at row 1, column 'f' "
        "(counted from 0)",
    ]
    path.write_text("client,f,label\na,1.5,0\na,2,1\nb,3,1\nb,4,0\n")
    _, shown, _ = upcycled("check", path)
    assert shown.splitlines()[1:] == ["read off the data: classes, dtype (a run with real noise wants them given)"]
    found = json.loads(upcycled("check", path, "--json", "--num-classes", 4, "--repair")[1])
    assert (found["classes"], found["inferred"], found["notes"]) == (4, [], [])
    tokens = json.loads(upcycled("describe", path, "--json", "--num-classes", 2, "--vocabulary", 4, "--repair")[1])
    assert (tokens["feature_type"], tokens["inferred"]) == ("int64", [])


def test_a_dealing_by_labels_is_remembered_as_read_off(upcycled, tmp_path):
    save(synthetic("iid", clients=2, sizes=20), tmp_path / "a.npz")
    for scheme, expected in ((["iid"], ["classes"]), (["dirichlet", "--alpha", 5], ["classes", "sizes"])):
        upcycled("make", "partition", tmp_path / "a.npz", tmp_path / "b.npz", "--scheme", *scheme, "--clients", 2,
                 "--test-fraction", 0, "--force")  # fmt: skip
        assert sorted(load(tmp_path / "b.npz").inferred) == expected
