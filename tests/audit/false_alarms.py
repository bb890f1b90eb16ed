"""``python -m tests.audit.false_alarms [RUNS]``: audit sound runs of every mechanism, and count the alarms."""

from __future__ import annotations

import sys
import time

from tests.audit.test_audit import SOUND, experiment
from upcycled.audit.full_audit import LEVEL, carry_out, survey

RUNS = 20
NOISE = ("seeded", "system")


def small(name, seed=0, privacy=None, **changes):
    """Return a small sound file of a mechanism; ``privacy`` and ``changes`` replace some of it."""
    usual = {"clients": 8 if name == "secret" else 4}
    if name == "dpsgd":
        usual["local"] = {"batch_size": 8, "epochs": 1, "lr": 0.1}
        privacy = {"noise_multiplier": 4.0} | (privacy or {})
    return experiment(SOUND[name] | (privacy or {}), seed, iterations=8, **(usual | changes))


def alarms(name, noise, runs=RUNS):
    """Return the runs whose audit raises an alarm, each with what it says."""
    files = {k: small(name, 100 * k, {"noise": noise}, engine="fused") for k in range(runs)}
    audits = {k: carry_out(survey(file, f"{name}.toml")) for k, file in files.items()}
    return {k: found.sentences[:-1] for k, found in audits.items() if found.is_broken}


def main() -> int:
    runs, total = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS, 0
    for name in SOUND:
        for noise in NOISE:
            started = time.process_time()
            found = alarms(name, noise, runs)
            total += len(found)
            print(f"{name:20s}{noise:8s}{len(found):3d} of {runs}  {time.process_time() - started:6.1f} s", flush=True)
            for k, sentences in found.items():
                print(f"    run {k}: {'; '.join(sentences)}")
    audits = runs * len(SOUND) * len(NOISE)
    print(f"{total} of {audits} sound runs are called broken; the stated rate is {LEVEL:g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
