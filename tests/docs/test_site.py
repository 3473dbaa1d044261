"""The documentation site builds without warnings, is complete, and loads nothing from other servers."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tests.docs.pages import ROOT

from repgraph.cli.app import app

PACKAGES = ("ops", "layers", "models", "inference", "evaluation", "train", "report")
MISSING = [each for each in ("mkdocs", "material", "mkdocstrings") if importlib.util.find_spec(each) is None]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: pip install 'repgraph[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for path in (*pages, *site.rglob("*.css")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<(script|img|iframe|source)[^>]*\ssrc=.?(https?:)?//", text), path
        assert not re.search(r"<link[^>]*(stylesheet|preconnect|icon)[^>]*href=.?(https?:)?//", text), path
        assert not re.search(r"url\(.?(https?:)?//|@import", text), path


def test_commands_are_listed(site: Path) -> None:
    text = (site / "commands.html").read_text(encoding="utf-8")
    commands = typer.main.get_command(app).commands
    paths = [path for path, each in commands.items() if not hasattr(each, "commands")]
    paths += [f"{path}-{name}" for path, each in commands.items() for name in getattr(each, "commands", ())]
    assert len(paths) > 12
    assert all(f'id="repgraph-{path}"' in text for path in paths)


def test_public_names_are_in_the_reference(site: Path) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (site / "api").glob("*.html"))
    for package in PACKAGES:
        for name in importlib.import_module(f"repgraph.{package}").__all__:
            paths = (name, f"{package}.{name}", f"{package}.{name}.{name}")  # the last in a module of the same name
            assert any(f'id="repgraph.{path}"' in text for path in paths), f"{package}.{name}"
    assert ":class:" not in text and ":func:" not in text
