"""A process that stands in for that of a run: it trains nothing and is done at once, or does what a test wants.

``FAKE`` names a folder. A file ``NAME-SEED`` in it says how a run of the entry NAME behaves; ``log`` gets a line for
each start.
"""

import fcntl
import json
import os
import sys
import time
from pathlib import Path


def score(name, seed):
    return round(0.5 + 0.01 * (sum(map(ord, name)) % 17) + 0.003 * seed * (1 + len(name) % 3), 6)


def record(task, status, reason="", miou=None):
    return {
        **task["about"],
        "status": status,
        "miou": miou,
        "pixel_accuracy": None if miou is None else 0.9,
        "mean_accuracy": None if miou is None else 0.7,
        "iterations": task["recipe"]["train"]["iterations"],
        "seconds": 2.0,
        "device": "fake",
        "repgraph": "0",
        "torch": "0",
        "python": "0",
        "finished": "2026-01-01T00:00:00+00:00",
        "reason": reason,
    }


def main():
    task = json.loads(Path(sys.argv[1]).read_text())
    name = task["recipe"]["name"].partition("-")[2]
    seed, home = task["recipe"]["train"]["seed"], Path(os.environ["FAKE"])
    claim = Path(task["claim"]).open("a")  # noqa: SIM115 - held to the end
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        Path(task["result"]).write_text(json.dumps({"status": "busy", "reason": "", "record": None}))
        return
    with (home / "log").open("a") as log:
        log.write(f"{name}-{seed} {os.environ.get('CUDA_VISIBLE_DEVICES', '')}\n")
    wanted = home / f"{name}-{seed}"
    what = wanted.read_text() if wanted.exists() else ""
    folder = Path(task["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.csv").write_text("iteration,loss\n2,1.0\n")
    if what == "crash":
        print("about to crash", flush=True)
        os._exit(7)
    if what == "hang":
        time.sleep(120)
    if what == "slow":
        time.sleep(1.5)
    if what == "nan":
        reason = "the loss is not finite"
        ended = {"status": "diverged", "reason": reason, "record": record(task, "diverged", reason)}
    else:
        found = record(task, "ok", miou=score(name, seed))
        (folder / "scores.json").write_text(json.dumps(found))
        ended = {"status": "ok", "reason": "", "record": found}
    if what == "unheard":  # the one who started it is told nothing
        return
    Path(task["result"]).write_text(json.dumps(ended))


if __name__ == "__main__":
    main()
