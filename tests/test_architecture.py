"""The layout of the packages: imports between them, and dependencies of the core. Read from the source."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "src"

# A module may import modules of lower levels and of its own package. The longest matching prefix counts.
LEVELS = {
    "repgraph.__main__": 13,
    "repgraph.cli": 12,
    "repgraph.ablation": 11,
    "repgraph.report": 10,
    "repgraph.train": 9,
    "repgraph.visualize": 9,
    "repgraph.export": 9,
    "repgraph.evaluation": 8,
    "repgraph.inference": 7,
    "repgraph.recipes": 6,
    "repgraph.drawing": 6,
    "repgraph.bench": 6,
    "repgraph.info": 5,
    "repgraph.models": 5,
    "repgraph.data": 5,
    "repgraph.progress": 2,
    "repgraph.distributed": 2,
    "repgraph": 4,  # the package itself: what users import
    "repgraph.acceleration": 3,
    "repgraph.layers": 3,
    "repgraph.ops": 2,
    "repgraph.files": 1,
    "repgraph.errors": 0,
    "repgraph.constants": 0,
}
# The same within ``ops``: kernels are reached through ``library`` alone, which imports them when they first run.
OPS_LEVELS = {
    "repgraph.ops": 5,
    "repgraph.ops.bottleneck": 5,
    "repgraph.ops.normalised": 4,
    "repgraph.ops.api": 3,
    "repgraph.ops.deformable": 3,
    "repgraph.ops.product": 3,
    "repgraph.ops.triton": 2,
    "repgraph.ops.cpu": 2,
    "repgraph.ops.reference": 2,
    "repgraph.ops.library": 1.5,
    "repgraph.ops.backends": 1,
    "repgraph.ops.checks": 1,
    "repgraph.ops.formats": 1,
    "repgraph.ops.geometry": 0,
    "repgraph.ops.tf32": 0,
}
KERNELS = ("repgraph.ops.triton", "repgraph.ops.cpu")


def read_imports(tree: ast.Module) -> set[str]:
    """Return the full names of all modules that a module imports, except those only for type checking."""
    found = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
        waiting += ast.iter_child_nodes(node)
    return found


def package(name: str, levels: dict[str, float]) -> str:
    """Return the entry of ``levels`` that a module belongs to."""
    fits = [key for key in levels if name == key or (key != "repgraph" and name.startswith(key + "."))]
    assert fits, f"{name} has no level: add it to tests/test_architecture.py"
    return max(fits, key=len)


def violations(levels: dict[str, float], within: str) -> list[str]:
    found = []
    for name in (name for name in MODULES if name.startswith(within)):
        here = package(name, levels)
        for other in (other for other in IMPORTS[name] if f"{other}.".startswith(f"{within}.")):
            there = package(other, levels)
            if here != there and levels[there] >= levels[here]:
                found.append(f"{name} imports {other}")
    return found


PATHS = {path.relative_to(ROOT).with_suffix(""): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
MODULES = {".".join(path.parts).removesuffix(".__init__"): text for path, text in PATHS.items()}
TREES = {name: ast.parse(text) for name, text in MODULES.items()}
IMPORTS = {name: read_imports(tree) for name, tree in TREES.items()}


def test_imports_between_packages_go_one_way():
    allowed = {"repgraph.info imports repgraph"}  # the version
    assert set(violations(LEVELS, "repgraph")) <= allowed


def test_imports_within_ops_go_one_way():
    assert violations(OPS_LEVELS, "repgraph.ops") == []


def test_the_core_needs_torch_numba_and_numpy_only():
    base = {"torch", "numpy", "numba", "repgraph", *sys.stdlib_module_names}
    own = {"repgraph.ops.triton": {"triton"}, "repgraph.ops.cpu": {"filelock", "llvmlite"}}  # of torch and numba
    for name in MODULES:
        if name.startswith(("repgraph.ops", "repgraph.layers")):
            allowed = base | next((extra for prefix, extra in own.items() if name.startswith(prefix)), set())
            assert {other.split(".")[0] for other in IMPORTS[name]} <= allowed, name


def test_kernels_are_imported_by_the_library_alone():
    for name, imported in IMPORTS.items():
        if not name.startswith(KERNELS):
            assert not {other for other in imported if other.startswith(KERNELS)}, name
            timing = {"triton"} if name == "repgraph.bench.measure" else set()  # triton.testing
            assert not {other.split(".")[0] for other in imported} & {"numba", "triton"} - timing, name
    users = {name for name, text in MODULES.items() if "import_module" in text}
    assert users <= {"repgraph", "repgraph.ops.library", "repgraph.ops.backends", "repgraph.models.context"}


def test_modules_are_short_and_have_docstrings():
    for name, text in MODULES.items():
        assert len(text.splitlines()) < 500, name
        assert ast.get_docstring(TREES[name]), f"{name} has no docstring"
