"""What a run did, as plain values; their hashes; and where two hashes may be expected to agree."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
from importlib.metadata import version

import numpy as np

DELTA = 1e-5
RECORD = (
    "iteration", "kind", "data_round", "accuracy", "loss", "global_accuracy", "global_loss", "coefficient", "bytes_up",
    "bytes_down", "messages", "gradient_steps", "clients", "client_steps",
)  # fmt: skip
ENTRY = ("iteration", "kind", "round", "attempt", "clients")
CHARGE = ("kind", "clients", "sensitivity", "noise_std", "epsilon", "sampling_rate", "steps")
DROPPED = (
    "seconds", "version", "path", "folder", "file", "report", "plot", "results", "sha256", "repeat", "hash",
    "fingerprint",
)  # fmt: skip
"""Parts of a JSON key that say: differs from run to run, from machine to machine, or names a run."""


def of_result(result):
    """Everything of a run that its seed determines: part -> column -> values."""
    history = {name: [plain(getattr(record, name)) for record in result.history] for name in RECORD}
    measured = [record.metrics for record in result.history]
    for name in sorted({name for terms in measured for name in terms}):
        history[name] = [plain(terms.get(name)) for terms in measured]
    found = {"params": {"vector": plain(result.params)}, "history": history}
    if result.personal_models is not None:
        clients = sorted(result.personal_models)
        vectors = [plain(result.personal_models.params(client)) for client in clients]
        found["personal"] = {"clients": clients, "vector": [number for vector in vectors for number in vector]}
    if result.privacy is not None:
        found["ledger"] = _of_ledger(result.privacy)
    return found


def of_results(results):
    """Facts of several runs, side by side."""
    return {f"{place}.{part}": columns for place, run in enumerate(results) for part, columns in of_result(run).items()}


def of_document(text, folder):
    """The columns of a JSON document: a key's values wherever it stands, items of a list in order."""
    columns = {}
    _collect(json.loads(text.replace(str(folder), "FOLDER")), "", columns)
    return {"json": columns}


def plain(value):
    """NumPy and torch values as Python's own."""
    return value.tolist() if hasattr(value, "tolist") else value


def digest(value):
    """Twelve characters that change with any bit of any number; 1 and 1.0 differ, as do 0.0 and -0.0."""
    return hashlib.sha256(json.dumps(_exact(value), sort_keys=True).encode()).hexdigest()[:12]


def summary(part, columns):
    """What is comparable on another machine: the columns without rounding, and of others tolerances and numbers."""
    kind = part.rpartition(".")[2]
    if kind == "json":
        # What a comparison or a sweep notes may hang on its numbers.
        return {"same": [name for name, values in columns.items() if name != "notes" and _is_text(values)], "near": {}}
    # Privacy loss distributions are on a grid, where another rounding of the last bit can move a little mass.
    closely = 1e-6 if "sampled" in columns.get("charge_kind", ()) else 1e-9
    near = {}
    for name, values in columns.items():
        if name == "vector":
            places = np.linspace(0, len(values) - 1, 5).astype(int).tolist()
            norm = math.sqrt(math.fsum(x * x for x in values))
            near[name] = [1e-3, 1e-4, *(_short(x) for x in (norm, *(values[i] for i in places)))]
        elif kind == "ledger" and _has_floats(values):
            numbers = [x for x in _flat(values) if isinstance(x, float)]
            finite = [x for x in numbers if math.isfinite(x)]
            near[name] = [closely, 0.0, len(numbers), len(finite), math.fsum(finite), max(finite, default=0.0)]
    return {"same": [name for name, values in columns.items() if not _has_floats(values)], "near": near}


def _is_text(values):
    """Whether there are sentences, and no number in them or beside them that another machine may round otherwise."""
    found = _flat(values)
    return bool(found) and all(isinstance(one, str) and " " in one and not re.search(r"\d\.\d", one) for one in found)


def signature():
    """What the last bit of a run depends on besides the code: the processor and the libraries."""
    import llvmlite.binding as llvm
    import numba
    import scipy.linalg  # noqa: F401 - its BLAS counts too, loaded yet or not
    import torch
    from threadpoolctl import threadpool_info

    features = llvm.get_host_cpu_features()
    names = ("sse4.2", "avx", "avx2", "fma", "avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512vnni", "amx-tile")
    return {
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": numba.config.CPU_NAME or llvm.get_host_cpu_name(),
        "features": sorted(name for name in names if features.get(name)),
        "torch_kernels": torch.backends.cpu.get_cpu_capability(),
        "blas": sorted({str(pool.get("architecture")) for pool in threadpool_info() if pool["user_api"] == "blas"}),
        "versions": {name: version(name) for name in ("dp-accounting", "llvmlite", "numba", "numpy", "scipy", "torch")},
    }


def _of_ledger(ledger):
    entries = list(ledger)
    charges = [entry.charge for entry in entries if entry.charge is not None]
    columns = {name: [plain(getattr(entry, name)) for entry in entries] for name in ENTRY}
    columns |= {f"charge_{name}": [plain(getattr(charge, name)) for charge in charges] for name in CHARGE}
    return columns | {"rounds": plain(ledger.rounds), "spent": plain(ledger.epsilon(DELTA))}


def _collect(value, key, columns):
    if isinstance(value, dict):
        for name, inner in value.items():
            if not any(word in name.lower() for word in DROPPED):
                _collect(inner, f"{key}.{name}" if key else name, columns)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for item in value:
            _collect(item, f"{key}[]", columns)
    else:
        columns.setdefault(key, []).append(value)


def _exact(value):
    if isinstance(value, float):
        return f"float {value.hex()}"
    if isinstance(value, (list, tuple)):
        return [_exact(item) for item in value]
    assert value is None or isinstance(value, (bool, int, str)), type(value)
    return value


def _flat(value):
    return [x for item in value for x in _flat(item)] if isinstance(value, list) else [value]


def _has_floats(values):
    return any(isinstance(x, float) for x in _flat(values))


def _short(number):
    return float(f"{number:.6g}")
