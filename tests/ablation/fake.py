"""A fake ``repgraph train``: writes the files of a run without training.

The environment variable FAKE is a folder. A file NAME-SEED in it determines how the run of the entry NAME behaves; its
``log`` has a line for each start.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def score(name, seed):
    return round(0.5 + 0.01 * (sum(map(ord, name)) % 17) + 0.003 * seed * (1 + len(name) % 3), 6)


def main():
    first, second, *more = sys.argv[2:]  # RECIPE --out FOLDER, or --resume FOLDER --set ...
    resumed = first == "--resume"
    folder = Path(second if resumed else more[0])
    recipe = json.loads((folder / "recipe.json" if resumed else Path(first)).read_text())
    name, seed = recipe["name"].partition("-")[2], recipe["train"]["seed"]
    home = Path(os.environ["FAKE"])
    behaviour = (home / f"{name}-{seed}").read_text() if (home / f"{name}-{seed}").exists() else ""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.json").write_text(json.dumps(recipe))
    (folder / "metrics.csv").write_text("iteration,loss\n2,1.0\n")

    def stop(*_):
        (folder / "checkpoints").mkdir(exist_ok=True)
        (folder / "checkpoints" / "last.ckpt").write_text("")
        os._exit(143)

    signal.signal(signal.SIGTERM, stop)
    with (home / "log").open("a") as log:
        log.write(f"{name}-{seed}{' resumed' if resumed else ''} on {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
    if behaviour == "crash":
        print("first line\nabout to crash\n", flush=True)
        os._exit(7)
    if behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep({"hang": 120.0, "slow": 1.5}.get(behaviour, 0.0))
    versions = {"repgraph": "0", "torch": "0", "python": "0", "gpu": None}
    ended = {"at": "2026-01-01T00:00:02+00:00", "reason": "the loss is not finite" if behaviour == "nan" else ""}
    session = {"started": "2026-01-01T00:00:00+00:00", "versions": versions, "ended": ended}
    (folder / "versions.json").write_text(json.dumps({"sessions": [session]}))
    if behaviour == "nan":
        os._exit(3)
    if behaviour != "unscored":
        scores = {"miou": score(name, seed), "pixel_accuracy": 0.9, "mean_accuracy": 0.7}
        (folder / "metrics.csv").write_text(f"iteration,loss\n{recipe['train']['iterations']},1.0\n")
        (folder / "scores.json").write_text(json.dumps({"iteration": recipe["train"]["iterations"], **scores}))
    (folder / "model").mkdir(exist_ok=True)


if __name__ == "__main__":
    main()
