"""Wrong experiment files: each is answered by one sentence with the file, the key, the value and what is right."""

from __future__ import annotations

import numpy as np
import pytest

from tests.experiments.small import SMALL, everything_under, small_file
from upcycled.cli.main import main


def changed(before, after):
    assert before in SMALL
    return SMALL.replace(before, after, 1)


ALGORITHM = '[algorithm]\nname = "fedprox"\nmu = 0.5\n'
DATA = SMALL[SMALL.index("[data]") : SMALL.index("[algorithm]")]

WRONG = {
    "unknown key at the top": ("seed = 3\n" + SMALL, ["seed is 3", "did you mean 'seeds'?"]),
    "key that belongs to a table": (
        "participation = 0.5\n" + SMALL,
        ["participation is 0.5", "'clients.participation'"],
    ),
    "key that belongs to the top": (
        changed("[local]\n", "[local]\neval_every = 2\n"),
        ["local.eval_every is 2", "[local] with kind 'sgd' has no such key", "'eval_every' above the first [table]"],
    ),
    "misspelt key in a table": (changed("lr =", "lrr ="), ["local.lrr is 0.05", "did you mean 'lr'?"]),
    "misspelt hyper-parameter": (changed("mu =", "muu ="), ["algorithm.muu is 0.5", "did you mean 'mu'?", "'fedprox'"]),
    "hyper-parameter of another algorithm": (
        changed('"fedprox"', '"fedavg"'),
        ["algorithm.mu is 0.5", "with name 'fedavg' has no such key", "server_lr"],
    ),
    "unknown algorithm": (
        changed('"fedprox"', '"fedporx"'),
        ["algorithm.name is 'fedporx'", "did you mean 'fedprox'?"],
    ),
    "no algorithm": (changed(ALGORITHM, ""), ["algorithm is missing", "[algorithm]"]),
    "algorithm without a name": (changed('name = "fedprox"\n', ""), ["algorithm.name is missing", "'scaffold'"]),
    "no data": (changed(DATA, ""), ["data is missing", "[data]"]),
    "no name": (changed('name = "small"\n', ""), ["name is missing", "folder name"]),
    "name with a slash": (changed('"small"', '"../small"'), ["name is '../small'", "folder name"]),
    "name of dots": (changed('"small"', '".."'), ["name is '..'", "folder name"]),
    "empty name": (changed('"small"', '""'), ["name is ''", "folder name"]),
    "zero iterations": (changed("= 4\n", "= 0\n"), ["iterations is 0", "an integer >= 1"]),
    "iterations with a point": (changed("= 4\n", "= 4.0\n"), ["iterations is 4.0", "an integer >= 1"]),
    "true is not a number": (changed("= 4\n", "= true\n"), ["iterations is True", "an integer >= 1"]),
    "astronomic iterations": (
        changed("= 4\n", f"= 0x{'f' * 5000}\n"),
        ["iterations is a number of more than 4300 digits", "an integer >= 1 and < 2^31"],
    ),
    "more iterations than a life has": (changed("= 4\n", "= 10_000_000_000\n"), ["iterations is 10000000000, but"]),
    "an integer of too many digits": (changed("= 4\n", f"= {'9' * 5000}\n"), ["valid TOML"]),
    "no seeds": (changed("[0, 1]", "[]"), ["seeds is []", "one or more different integers >= 0"]),
    "a seed twice": (changed("[0, 1]", "[1, 0, 1]"), ["seeds is [1, 0, 1]", "different"]),
    "negative seed": (changed("[0, 1]", "[-1]"), ["seeds is [-1]", ">= 0"]),
    "seeds not a list": (changed("[0, 1]", "3"), ["seeds is 3", "a list"]),
    "unknown engine": ('engine = "warp"\n' + SMALL, ["engine is 'warp'", "sequential"]),
    "negative learning rate": (changed("lr = 0.05", "lr = -0.05"), ["local.lr is -0.05", "a finite number > 0"]),
    "zero learning rate": (changed("lr = 0.05", "lr = 0"), ["local.lr is 0,", "> 0"]),
    "learning rate as text": (changed("lr = 0.05", 'lr = "0.05"'), ["local.lr is '0.05'", "a finite number > 0"]),
    "infinite learning rate": (changed("lr = 0.05", "lr = inf"), ["local.lr is inf", "a finite number > 0"]),
    "momentum of one": (changed("epochs", "momentum = 1\nepochs"), ["local.momentum is 1", "< 1"]),
    "zero epochs": (changed("epochs = 2", "epochs = 0"), ["local.epochs is 0", "an integer >= 1"]),
    "batch size as a word": (changed("= 8", '= "all"'), ["local.batch_size is 'all'", "'full'"]),
    "participation above one": (changed("n = 0.5", "n = 1.5"), ["clients.participation is 1.5", "> 0 and <= 1"]),
    "participation of zero": (changed("n = 0.5", "n = 0"), ["clients.participation is 0", "> 0 and <= 1"]),
    "unknown sampling": (SMALL + 'sampling = "poison"\n', ["clients.sampling is 'poison'", "'poisson'"]),
    "stragglers above one": (SMALL + "stragglers = 2\n", ["clients.stragglers is 2", "<= 1"]),
    "stragglers of one epoch": (
        changed("epochs = 2", "epochs = 1") + "stragglers = 0.5\n",
        ["clients.stragglers is 0.5", "local.epochs is 1"],
    ),
    "negative mu": (changed("mu = 0.5", "mu = -1"), ["algorithm.mu is -1", ">= 0"]),
    "coefficient nan": (changed("t = 0.7", "t = nan"), ["upcycle.coefficient is nan", "a finite number >= 0"]),
    "coefficient missing": (changed("coefficient = 0.7", ""), ["upcycle.coefficient is missing", "a finite number"]),
    "unknown coefficient kind": (
        changed("coefficient = 0.7", 'kind = "constnt"'),
        ["upcycle.kind is 'constnt'", "did you mean 'constant'?"],
    ),
    "a key that auto does not have": (
        changed("coefficient = 0.7", 'kind = "auto"\ncoefficient = 0.7'),
        ["upcycle.coefficient", "auto"],
    ),
    "schedule with a negative number": (
        changed("coefficient = 0.7", 'kind = "lambda_half"\nlam = [0.1, -2]'),
        ["upcycle.lam is -2", ">= 0"],
    ),
    "key of another source": (
        changed('"synthetic"', '"femnist"'),
        ["data.alpha is 0.5", "[data] with source 'femnist' has no such key", "letters"],
    ),
    "more letters than the alphabet": (
        changed(DATA, '[data]\nsource = "femnist"\nletters = 27\n'),
        ["data.letters is 27", "an integer >= 3 and <= 26"],
    ),
    "published sizes for other letters": (
        changed(DATA, '[data]\nsource = "femnist"\npartition = "public"\n'),
        ["data.partition is 'public'", "'published' or 'drawn'"],
    ),
    "letters from nowhere": (
        changed(DATA, '[data]\nsource = "femnist"\npath = "no.npz"\n'),
        ["data.path is '", "no.npz', but it must be a file or a folder that exists"],
    ),
    "vectors of a size nobody has": (
        changed(DATA, '[data]\nsource = "sent140"\ndimension = 200\n'),
        ["data.dimension is 200", "50, 100 or 300"],
    ),
    "unknown source": (
        changed('"synthetic"', '"synthetik"'),
        ["data.source is 'synthetik'", "did you mean 'synthetic'?"],
    ),
    "one class": (changed("sizes", "num_classes = 1\nsizes"), ["data.num_classes is 1", ">= 2"]),
    "no clients": (changed("clients = 4", "clients = 0"), ["data.clients is 0", ">= 1"]),
    "beta missing": (changed("beta = 0.5\n", ""), ["data.beta is None", "a number >= 0"]),
    "beta with iid": (changed("alpha = 0.5", 'alpha = "iid"'), ["data.beta is 0.5", "left out"]),
    "sizes for other clients": (changed("sizes = 20", "sizes = [5, 5]"), ["data.sizes has 2 numbers", "clients is 4"]),
    "test fraction of one": (changed("sizes", "test_fraction = 1\nsizes"), ["data.test_fraction is 1", "< 1"]),
    "unknown model": (SMALL + '\n[model]\nkind = "mpl"\n', ["model.kind is 'mpl'", "did you mean 'mlp'?"]),
    "hidden of a logistic model": (
        SMALL + "\n[model]\nhidden = [4]\n",
        ["model.hidden is [4]", "with kind 'logistic'"],
    ),
    "hidden width of zero": (SMALL + '\n[model]\nkind = "mlp"\nhidden = [4, 0]\n', ["model.hidden is", ">= 1"]),
    "factory that is not there": (
        SMALL + '\n[model]\nkind = "nowhere.at_all:f"\n',
        ["model.kind is 'nowhere.at_all:f'", "no module 'nowhere' among the installed packages", "--path DIR"],
    ),
    "model that does not fit": (SMALL + '\n[model]\nkind = "lstm"\n', ["model 'lstm' needs integer token ids"]),
    "mechanism without noise": (
        SMALL + '\n[privacy]\nmechanism = "model_clipping"\nclip_norm = 1\n',
        ["ModelClipping has no noise", "noise_std=, or epsilon and delta= in its place"],
    ),
    "negative clipping": (
        SMALL + '\n[privacy]\nmechanism = "model_clipping"\nclip_norm = -1\nnoise_std = 1\n',
        ["privacy.clip_norm is -1", "> 0"],
    ),
    "real noise": (
        SMALL + '\n[privacy]\nmechanism = "model_clipping"\nclip_norm = 1\nnoise_std = 1\nnoise = "loud"\n',
        ["privacy.noise is 'loud'", "'seeded'", "'system'"],
    ),
    "momentum with pfedme": (
        changed(ALGORITHM, '[algorithm]\nname = "pfedme"\n').replace("epochs", "momentum = 0.5\nepochs"),
        ["local.momentum is 0.5", "pFedMe uses no momentum"],
    ),
    "table that is a number": ("local = 3\n" + SMALL.replace("[local]", "[other]"), ["local is 3", "a table [local]"]),
    "sweep of an unknown key": (SMALL + '\n[sweep]\n"local.lrr" = [1]\n', ['sweep."local.lrr"', "did you mean 'lr'?"]),
    "sweep of a wrong value": (SMALL + '\n[sweep]\n"local.lr" = [1, -1]\n', ['sweep."local.lr" holds -1', "> 0"]),
    "sweep of the seeds": (SMALL + "\n[sweep]\nseeds = [[1]]\n", ['sweep."seeds"', "a key that makes a run"]),
    "sweep of one value": (SMALL + '\n[sweep]\n"local.lr" = 1\n', ['sweep."local.lr" is 1', "a list", "a range"]),
    "sweep of nothing": (SMALL + '\n[sweep]\n"local.lr" = []\n', ['sweep."local.lr" is []', "one or more values"]),
    "sweep of an empty table": (SMALL + '\n[sweep]\n"local.lr" = {}\n', ['sweep."local.lr" is {}', "a range such as"]),
    "sweep of how results are kept": (
        SMALL + "\n[sweep]\ncheckpoint_every = [1, 2]\n",
        ['sweep."checkpoint_every"', "a key that makes a run"],
    ),
    "range without an end": (
        SMALL + '\n[sweep]\n"local.lr" = {low = 0.1}\n',
        ['sweep."local.lr" has no high', "low = "],
    ),
    "range upside down": (
        SMALL + '\n[sweep]\n"local.lr" = {low = 1.0, high = 0.1}\n',
        ['sweep."local.lr": high is 0.1', "> 1"],
    ),
    "misspelt key of a range": (
        SMALL + "\n[sweep]\nlocal.lr = {low = 0.1, hihg = 1.0}\n",
        ["sweep.\"local.lr\" has the key 'hihg'", "did you mean 'high'?"],
    ),
    "logarithmic range from zero": (
        SMALL + '\n[sweep]\n"local.lr" = {low = 0, high = 1.0, log = true}\n',
        ['sweep."local.lr": low is 0', "> 0"],
    ),
    "range of texts": (
        SMALL + '\n[sweep]\n"local.lr" = {low = "a", high = 1}\n',
        ["sweep.\"local.lr\": low is 'a'", "a finite number"],
    ),
    "range with a word for yes": (
        SMALL + '\n[sweep]\n"local.lr" = {low = 0.1, high = 1, log = "yes"}\n',
        ["log is 'yes'", "true or false"],
    ),
    "range that leaves what is allowed": (
        SMALL + '\n[sweep]\n"clients.participation" = {low = 0.5, high = 1.5}\n',
        ['sweep."clients.participation" holds 1.5', "<= 1"],
    ),
    "range of numbers for an integer": (
        SMALL + '\n[sweep]\n"local.epochs" = {low = 1, high = 9}\n',
        ['sweep."local.epochs" holds 4.28', "an integer >= 1", "integer = true"],
    ),
    "checkpoints never": ("checkpoint_every = 0\n" + SMALL, ["checkpoint_every is 0", "an integer >= 1"]),
    "checkpoints now and then": ('checkpoint_every = "often"\n' + SMALL, ["checkpoint_every is 'often'", "'2s'"]),
    "checkpoints of half a round": ("checkpoint_every = 1.5\n" + SMALL, ["checkpoint_every is 1.5", "such as 10"]),
    "checkpoints of no seconds": ('checkpoint_every = "0s"\n' + SMALL, ["checkpoint_every is '0s'", "such as '2s'"]),
    "scored on what it was trained on": ('scored_on = "train"\n' + SMALL, ["scored_on is 'train'", "'validation'"]),
    "scored on validation data that is not there": (
        'scored_on = "validation"\n' + SMALL,
        ["data.validation_fraction is 0.0", "> 0, such as 0.1"],
    ),
    "broken syntax": ('name = "small\n', ["valid TOML", "line 1"]),
    "a key twice": ('name = "a"\nname = "b"\n', ["valid TOML", "line 2"]),
    "deep nesting": ("a = " + "[" * 5000, ["valid TOML"]),
    "empty file": ("", ["name is missing"]),
    "data file missing": (
        changed(DATA, '[data]\nsource = "npz"\npath = "none.npz"\n'),
        ["data.path", "none.npz", "does not exist"],
    ),
    "data file of another kind": (
        changed(DATA, '[data]\nsource = "csv"\npath = "set.npz"\n'),
        ["data.path is", "set.npz", "ends in .csv"],
    ),
    "missing column": (
        changed(DATA, '[data]\nsource = "csv"\npath = "set.csv"\nclient = "who"\n'),
        ["data.client is 'who'", "set.csv", "no such column"],
    ),
    "set that is not in the file": (
        changed(DATA, '[data]\nsource = "npz"\npath = "set.npz"\nname = "other"\n'),
        ["data.name is 'other'", "set.npz"],
    ),
}


def test_the_end_of_a_long_path_is_shown_since_it_is_the_name(tmp_path, monkeypatch, capsys):
    deep = tmp_path / ("a-rather-long-name-of-a-folder/" * 4)
    deep.mkdir(parents=True)
    (deep / "small.toml").write_text(changed(DATA, '[data]\nsource = "csv"\npath = "set.npz"\n'))
    monkeypatch.chdir(deep)
    assert "folder/set.npz', but it must be a path that ends in .csv" in answer(capsys, ["run", "small.toml"])[1]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with data, results of somebody else, and nothing more."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set.csv").write_text("client,label,a\n0,0,1.5\n0,1,2.5\n1,0,0.5\n1,1,1.0\n")
    x, y, client = np.ones((4, 2), dtype=np.float32), np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])
    np.savez(tmp_path / "set.npz", train_x=x, train_y=y, train_client=client)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "notes.txt").write_text("keep")
    return tmp_path


def answer(capsys, arguments):
    """Return the exit code and the one line on standard error; nothing else may be said."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return code, err


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_a_wrong_file_is_answered_by_one_sentence_and_writes_nothing(case, here, capsys):
    text, fragments = WRONG[case]
    (here / "small.toml").write_text(text, encoding="utf-8")
    before = everything_under(here)
    code, sentence = answer(capsys, ["run", "small.toml", "--quiet"])
    assert code == 2
    assert sentence.startswith("error: small.toml: ")
    for fragment in fragments:
        assert fragment in sentence
    assert len(sentence) < 500
    assert everything_under(here) == before


@pytest.mark.parametrize(
    ("override", "fragments"),
    [
        ("local.lr", ["'local.lr' must have the form key=value"]),
        ("=3", ["must have the form key=value"]),
        ("local.lr=", ["must have the form key=value"]),
        ("local..lr=3", ["'local..lr'", "a name of the file such as local.lr"]),
        ("seeds=[0, 1", ["'[0, 1'", "a TOML value"]),
        ("local.lr=1\nname='x'", ["a TOML value"]),
        ("name.first=a", ["name is 'small'", "a table"]),
        ("local.lr=fast", ["local.lr is 'fast'", "> 0"]),
        ("local.lrr=1", ["local.lrr is 1", "did you mean 'lr'?"]),
        ("algorithm.name=fedporx", ["algorithm.name is 'fedporx'", "did you mean 'fedprox'"]),
        ("upcycle.rho=0.5", ["upcycle.rho is 0.5", "did you mean 'coefficient'?"]),
        ("c=0.5", ["c is 0.5", "did you mean 'upcycle.coefficient'?"]),
        ("data.classes=2", ["data.classes is 2", "did you mean 'num_classes'?"]),
        ("labels=a", ["labels is 'a'", "did you mean 'data.label_names'?"]),
        ("checkpoints=a", ["checkpoints is 'a'", "did you mean 'checkpoint_every'?"]),
        ("~algorithm.nu", ["~algorithm.nu unsets a key that no file has", "did you mean 'mu'"]),
    ],
)
def test_a_wrong_override_is_answered_by_one_sentence(override, fragments, here, capsys):
    small_file(here)
    before = everything_under(here)
    code, sentence = answer(capsys, ["run", "small.toml", override, "--quiet"])
    assert code == 2
    for fragment in fragments:
        assert fragment in sentence
    assert everything_under(here) == before


def test_a_missing_file_a_folder_and_a_binary_file_are_each_named(here, capsys):
    (here / "binary.toml").write_bytes(b'name = "\xff"')
    for file, words in (
        ("none.toml", "does not exist"),
        (".", "cannot be read"),
        ("binary.toml", "byte 8 is not UTF-8"),
    ):
        code, sentence = answer(capsys, ["run", file])
        assert (code, words in sentence) == (2, True)
        assert f"{file}: " in sentence


def test_the_file_without_an_error_is_accepted(here, capsys):
    small_file(here)
    assert main(["run", "small.toml", "--quiet"]) == 0
