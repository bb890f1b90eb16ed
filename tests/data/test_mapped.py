"""Parquet files sorted by client into mapped files: the same data as a table read whole, in bounded memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import upcycled as up
from upcycled.data.readers import mapped

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def frame(rows=60, seed=0):
    rng = np.random.default_rng(seed)
    return pandas.DataFrame(
        {
            "label": rng.integers(0, 3, rows),
            "age": rng.normal(size=rows).astype(np.float32),
            "site": rng.choice([900, -4, 17, 2**40], rows),
            "dose": rng.integers(0, 9, rows),
        }
    )


def test_it_is_the_table_read_whole_whatever_the_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "_ROWS", 7)
    monkeypatch.setattr(mapped, "_WAITING", 3)
    tables = [frame(seed=seed) for seed in (1, 2, 3)]
    for i, table in enumerate(tables):
        table.to_parquet(tmp_path / f"{i}.parquet", row_group_size=11)
    pandas.concat(tables).to_csv(tmp_path / "whole.csv", index=False)
    whole = up.data.load(tmp_path / "whole.csv", client="site")
    files = [tmp_path / f"{i}.parquet" for i in range(3)]
    found = up.data.load_mapped(files, tmp_path / "mapped", client="site")
    assert isinstance(found.train.x.base, np.memmap)
    assert found.num_classes == whole.num_classes == 3
    np.testing.assert_array_equal(found.train.offsets, whole.train.offsets)
    np.testing.assert_array_equal(found.train.x, whole.train.x)
    np.testing.assert_array_equal(found.train.y, whole.train.y)
    assert [found.names.called(i) for i in range(4)] == ["-4", "17", "900", str(2**40)]
    doses = up.data.load_mapped(files[0], tmp_path / "doses", "site", "dose", ["age"], targets="numbers")
    assert doses.train.y.dtype == np.float32
    assert doses.train.x.shape == (60, 1)


WRONG = {
    "no such column": ({"client": "nobody"}, {}, "no such column"),
    "one for two": ({"client": "label"}, {}, "different columns"),
    "words": ({}, {"age": ["old"] * 60}, "column 'age'"),
    "gaps": ({}, {"age": [None, *[1.0] * 59]}, "column 'age'"),
    "clients in words": ({}, {"site": ["ann"] * 60}, "whole numbers"),
    "half a class": ({}, {"label": [0.5] * 60}, r"numbers.*classes"),
    "labels": ({"targets": "labels"}, {}, "targets"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_one_sentence(case, tmp_path):
    asked, changed, words = WRONG[case]
    frame().assign(**changed).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(up.InputError, match=words) as error:
        up.data.load_mapped(tmp_path / "t.parquet", tmp_path / "to", **({"client": "site"} | asked))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "to" / "x.npy").exists()


def test_files_that_are_there_are_not_written_over(tmp_path):
    frame().to_parquet(tmp_path / "t.parquet")
    up.data.load_mapped(tmp_path / "t.parquet", tmp_path / "to", client="site")
    with pytest.raises(up.InputError, match=r"x\.npy already"):
        up.data.load_mapped(tmp_path / "t.parquet", tmp_path / "to", client="site")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 is not all it takes")
    with pytest.raises(up.InputError, match=r"broken\.parquet.*read"):
        up.data.load_mapped(tmp_path / "broken.parquet", tmp_path / "other", client="site")


LARGE = """
import sys, threading
from pathlib import Path
import numpy as np, pyarrow, upcycled as up
from pyarrow import parquet

folder, files, rows, width = Path(sys.argv[1]), 5, 800_000, 64
up.train  # what is imported may take what it likes
rng, names = np.random.default_rng(0), [f"f{i}" for i in range(width)]
levels = rng.standard_normal(16).astype(np.float32)
for k in range(files):
    with parquet.ParquetWriter(folder / f"{k}.parquet", pyarrow.schema(
        [("client", pyarrow.int64()), ("label", pyarrow.int64()), *((n, pyarrow.float32()) for n in names)]
    )) as writer:
        for _ in range(8):
            n = rows // 8
            columns = [rng.integers(0, 200_000, n), rng.integers(0, 2, n)]
            columns += [levels[rng.integers(0, 16, n)] for _ in names]
            writer.write_table(pyarrow.table(dict(zip(["client", "label", *names], columns))))
parts = [folder / f"{k}.parquet" for k in range(files)]
limit, most, over = 1_000_000_000, [0], threading.Event()

def anonymous():  # mapped files are no such memory; everything else that this process holds is
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

def watch():
    while not over.wait(0.02):
        most[0] = max(most[0], anonymous())

watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
data = up.data.load_mapped(parts, folder / "mapped", num_classes=2)
assert data.train.x.nbytes > limit, data.train.x.nbytes
assert data.train.num_rows == files * rows
result = up.train(data, algorithm=up.Scaffold(), iterations=3, participation=1000 / data.num_clients, progress=False,
                  local=up.LocalSGD(lr=0.1, epochs=1, batch_size=10), engine="fused")
assert result.history[-1].messages == 2000
over.set()
watcher.join()
print(most[0])
assert 0 < most[0] < limit, most
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit counts what Linux counts")
def test_a_population_larger_than_the_memory_that_is_allowed_is_trained(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LARGE, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    disk = sum(path.stat().st_size for path in Path(tmp_path).rglob("*") if path.is_file())
    assert disk < 2e9
