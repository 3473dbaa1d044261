"""Folders of runs, written without training, and the text of pages."""

import json
import re
from html import unescape
from pathlib import Path

from tests.trained import save_run

from repgraph import recipes

REACH = "reach_mean/head.context,reach_p95/head.context"
COLUMNS = f"iteration,loss,rate,images_per_second,peak_memory_mib,{REACH},val_miou"
SETTINGS = ("train.iterations=40", "train.batch=8")
ROWS = (
    "10,2.5,0.01,40,900,1.5,2,",
    "20,1.25,0.008,50,1100,2,3,0.25",
    "30,1,0.004,40,1000,2.5,4,",
    "40,0.75,0.001,40,1000,3,5,0.2",
)


def session(start: int = 0, **more) -> dict:
    versions = {"repgraph": "0.1.0", "torch": "2.11.0", "gpu": None, "threads": "2"}
    given = {"command": "repgraph train x", "started": "2026-01-02T03:04:05+00:00", "from_iteration": start}
    return {**given, "seed": 0, "versions": versions, **more}


def write_logs(folder: Path, *sessions: dict, rows=ROWS, columns: str = COLUMNS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.csv").write_text("\n".join([columns, *rows]) + "\n", encoding="utf-8")
    (folder / "versions.json").write_text(json.dumps({"sessions": list(sessions or [session()])}))
    return folder


def stopped_run(folder: Path, *settings: str, name: str = "folder-r50-rgnet") -> Path:
    """Create a run that stopped before its first checkpoint."""
    folder.mkdir(parents=True)
    small = ["data.crop=64"] if name.startswith("folder") else []
    recipe = recipes.with_settings(recipes.get(name), [*SETTINGS, *small, *settings])
    (folder / "recipe.json").write_text(recipes.to_json(recipe))
    return write_logs(folder)


def finished_run(folder: Path, data: Path, *settings: str) -> Path:
    """Create a finished run with a small network of three classes."""
    save_run(folder, f"data.root={data}", "data.crop=64", *SETTINGS, *settings)
    return write_logs(folder)


def text_of(html: str) -> str:
    text = re.sub(r"<[^>]*>", " ", re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL))
    return " ".join(unescape(text).split())
