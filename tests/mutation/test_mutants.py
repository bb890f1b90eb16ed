"""The mutants themselves: each is one change, and it is what a forked process then runs."""

from __future__ import annotations

import sys

from tests.mutation import swapping
from tests.mutation.mutants import found_again, mutants_of

SOURCE = '''
from functools import cached_property, lru_cache
LIMIT = 3

def grows(x: int = 0) -> int:
    """Return 1 more, and never 2 more."""
    if x > LIMIT:
        raise ValueError(f"{x + 1} is too large")
    return max(x + 1, 0)

@lru_cache
def kept(x):
    return not x

class Thing:
    @cached_property
    def size(self):
        return [0.5 * i for i in range(2)]
'''


def module(tmp_path, monkeypatch):
    folder = tmp_path / "mutable"
    folder.mkdir()
    path = folder / "mutable_module.py"
    path.write_text(SOURCE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "mutable_module", raising=False)
    return folder, path


def test_numbers_change_and_words_annotations_and_errors_do_not(tmp_path, monkeypatch):
    folder, path = module(tmp_path, monkeypatch)
    found = {(one.line, one.was, one.becomes) for one in mutants_of(path, folder)}
    assert {(3, "3", "4"), (3, "3", "2"), (7, "x > LIMIT", "x >= LIMIT"), (9, "x + 1", "x - 1")} <= found
    assert {(9, "max(x + 1, 0)", "min(x + 1, 0)"), (13, "not x", "x"), (18, "0.5", "1.5")} <= found
    assert not {line for line, _, _ in found} & {6, 8}


def test_a_mutant_is_in_the_function_that_everybody_holds(tmp_path, monkeypatch):
    folder, path = module(tmp_path, monkeypatch)
    import mutable_module

    every = {(one.line, one.becomes): one.number for one in mutants_of(path, folder)}
    monkeypatch.setattr(swapping, "_module", lambda package, path: path.stem)
    grows, kept = mutable_module.grows, mutable_module.kept
    for line, becomes in ((9, "x - 1"), (13, "x"), (18, "1.5")):
        swapping.replace_code(folder, path, every[line, becomes])
    assert (grows(1), kept(True), mutable_module.Thing().size) == (0, True, [0.0, 1.5])
    assert swapping.outside_of_functions(path, every[3, "4"])
    assert swapping.outside_of_functions(path, every[5, "1"])  # a default
    assert not swapping.outside_of_functions(path, every[9, "x - 1"])


def test_a_mutant_is_found_again_after_its_function_moved(tmp_path, monkeypatch):
    folder, path = module(tmp_path, monkeypatch)
    before = mutants_of(path, folder)
    moved = folder / "elsewhere.py"
    moved.write_text(SOURCE.replace("LIMIT = 3", "LIMIT = 7").replace("not x", "x is None") + "\ny = 1 + 1\n")
    path.unlink()
    now = found_again([one.edit for one in before], [moved], folder)
    gone = {edit.before for edit, mutant in now.items() if mutant is None}
    assert gone == {"LIMIT = 3", "return not x"}
    kept = [(edit, mutant) for edit, mutant in now.items() if mutant is not None]
    assert len(kept) == len(before) - 4  # 3 became 4 and 2; not x became x, and its return None
    assert all((mutant.path, mutant.edit) == ("elsewhere.py", edit) for edit, mutant in kept)
