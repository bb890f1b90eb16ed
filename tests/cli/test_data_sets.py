"""``upcycled data`` and the real sets: fetch, list, describe, check; and config files that name them."""

from __future__ import annotations

import gc
import json
import re

import numpy as np
import pytest

from tests.data.real_files import letter_pool, write_leaf
from tests.data.test_fetch import Site, archive, serving
from upcycled.cli.main import main
from upcycled.config.experiment import load_config
from upcycled.core.errors import InputError
from upcycled.data.sets.fetch import PACKAGES

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture
def upcycled(capsys):
    def run(*words):
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("UPCYCLED_DATA", str(folder))
    monkeypatch.setenv("UPCYCLED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    yield folder
    gc.collect()  # pooch leaves the sockets of failed downloads to the garbage collector


def vectors_archive(numbers=50):
    text = "\n".join(f"{word} " + " ".join(["0.5"] * numbers) for word in ("good", "bad")).encode()
    return archive(**dict.fromkeys(PACKAGES["glove"].files, text))


def test_fetch_shows_what_was_checked(upcycled, own_folder):
    with serving(Site(content=vectors_archive())) as site:
        code, shown, chatter = upcycled("data", "fetch", "glove", "--url", site.url)
        assert code == 0
        assert shown.startswith("fetched: glove (no checksum is published; the archive's own sums are right)\n")
        assert str(own_folder / "glove.6B" / "glove.6B.50d.txt") in shown
        assert site.url in chatter
        code, shown, _ = upcycled("data", "fetch", "glove", "--url", site.url, "--json")
        assert (code, json.loads(shown)["was_there"]) == (0, True)
        elsewhere = own_folder / "elsewhere"
        assert upcycled("data", "fetch", "glove", "--url", site.url, "--to", elsewhere)[0] == 0
        assert (elsewhere / "glove.6B" / "glove.6B.300d.txt").is_file()


@pytest.mark.parametrize(
    ("site", "exit_code", "words"),
    [
        (Site(status=404), 1, "404 Client Error: Not Found"),
        (Site(status=500), 1, "500 Server Error"),
        (Site(content=vectors_archive(), cut_after=50), 1, "IncompleteRead"),
        (Site(content=b"<html>"), 1, r"\(File.*zip.*removed"),
    ],
)
def test_a_failed_fetch_is_one_sentence(upcycled, own_folder, site, exit_code, words):
    with serving(site):
        code, shown, chatter = upcycled("data", "fetch", "glove", "--url", site.url)
    assert (code, shown) == (exit_code, "")
    last = chatter.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert re.search(words, last)
    assert not list(own_folder.rglob("*.txt"))


def test_a_wrong_checksum_is_one_sentence(upcycled, own_folder):
    with serving(Site(content=vectors_archive())) as site:
        code, _, chatter = upcycled("data", "fetch", "femnist", "--url", site.url)
    assert code == 1
    assert PACKAGES["femnist"].sha256 in chatter
    assert "give another address with --url" in chatter


def test_an_unknown_set_ends_with_exit_code_two(upcycled):
    assert upcycled("data", "fetch", "glov")[0] == 2


def test_list_says_which_sets_are_there_and_how_to_get_the_others(upcycled, own_folder):
    code, shown, _ = upcycled("data", "list")
    assert code == 0
    assert "upcycled data fetch femnist" in " ".join(shown.split())
    np.savez(own_folder / "emnist_lower26_pool.npz", **letter_pool(per_letter=3))
    sets = {found["name"]: found for found in json.loads(upcycled("data", "list", "--json")[1])["sets"]}
    assert sets["femnist"]["path"] == str(own_folder / "emnist_lower26_pool.npz")
    assert sets["sent140"]["path"] is None
    assert sets["word vectors, 300"]["fetch"] == "glove"


def test_describe_and_check_take_the_name_of_a_set(upcycled, own_folder):
    np.savez(own_folder / "emnist_lower26_pool.npz", **letter_pool(per_letter=3))
    document = json.loads(upcycled("data", "describe", "femnist", "--json")[1])
    assert (document["clients"], document["samples"], document["test_samples"]) == (50, 16421, 1924)
    document = json.loads(upcycled("data", "describe", "femnist", "--letters", 26, "--devices", 4, "--json")[1])
    assert (document["clients"], document["classes"]) == (4, 26)
    path = write_leaf(own_folder / "tweets.json", {"a": (["good", "bad", "good day"], [1, 0, 1])})
    (own_folder / "glove.6B.50d.txt").write_text("good " + " ".join(["1"] * 50) + "\n")
    code, shown, _ = upcycled("data", "check", "sent140", "--source", path, "--devices", 1)
    first, second = shown.splitlines()
    assert (code, first) == (0, "OK: sent140 has 1 clients, 2 samples, 2 classes, 1 test samples")
    assert second.startswith("read off the data: sizes, vocabulary ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("sent140",), r"Sent140.*machine"),
        (("femnist", "--dimension", 50), r"--dimension.*50"),
        (("sent140", "--letters", 5), r"--letters.*5.*sent140"),
        (("femnist", "--client", "x"), r"--client.*'x'"),
        (("femnist", "--test-fraction", 0.5), r"--test-fraction.*0\.5"),
        (("a.npz", "--devices", 5), r"--devices.*5"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(upcycled, words, sentence):
    code, shown, chatter = upcycled("data", "check", *words)
    assert (code, shown) == (2, "")
    assert re.search(sentence, chatter)


EXPERIMENT = '[algorithm]\nname = "fedavg"\n'


def config(tmp_path, data, more=""):
    path = tmp_path / "a.toml"
    path.write_text(f'name = "a"\n[data]\n{data}\n{more}{EXPERIMENT}')
    return load_config(path)


def test_a_config_file_names_femnist_with_its_options(tmp_path, own_folder):
    np.savez(own_folder / "emnist_lower26_pool.npz", **letter_pool(per_letter=3))
    data = config(tmp_path, 'source = "femnist"\nletters = 5\ndevices = 4\nvalidation_fraction = 0.2').build_data()
    assert (data.num_clients, data.num_classes) == (4, 5)
    assert data.validation.num_rows > 0
    assert config(tmp_path, 'source = "femnist"').build_data().train.num_rows == 16421
    resolved = config(tmp_path, 'source = "femnist"\nletters = 5').resolved_toml()
    assert "letters = 5" in resolved
    (tmp_path / "b.toml").write_text(resolved)
    assert load_config(tmp_path / "b.toml") == config(tmp_path, 'source = "femnist"\nletters = 5')


def test_a_config_file_names_sent140_and_its_model_takes_the_vectors(tmp_path, own_folder):
    write_leaf(own_folder / "tweets" / "a.json", {f"u{i}": (["good", "bad", "good day"], [1, 0, 1]) for i in range(4)})
    (own_folder / "glove.6B.100d.txt").write_text("good " + " ".join(["1"] * 100) + "\n")
    # A relative path is relative to the file.
    text = 'source = "sent140"\npath = "data/tweets"\ndevices = 2\ndimension = '
    experiment = config(tmp_path, text + "100", '[model]\nkind = "lstm"\nhidden = 3\n')
    assert experiment.build_data().vectors.shape == (3, 100)
    assert "embedding" not in experiment.spec(0).model_options
    assert config(tmp_path, text + "0").build_data().vectors is None


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ('source = "femnist"', r"FEMNIST.*machine"),
        ('source = "femnist"\npath = "no"', r"data\.path is '"),
        ('source = "sent140"\npath = "a.toml"', r"data\.path is '"),
        ('source = "sent140"\npath = "wrong.json"\ndimension = 0', r"data\.path /"),
        (
            'source = "femnist"\npath = "pool.npz"\npartition = "published"\ndevices = 9',
            r"data\.partition.*'published'",
        ),
    ],
)
def test_data_that_cannot_be_had_is_one_sentence_with_the_files_key(tmp_path, data, sentence):
    (tmp_path / "wrong.json").write_text("{}")
    np.savez(tmp_path / "pool.npz", **letter_pool(per_letter=3))
    with pytest.raises(InputError) as error:
        config(tmp_path, data + ("\ndimension = 0" if "a.toml" in data else "")).build_data()
    assert re.search(sentence, str(error.value))
