"""Imports go one way, kernels are reached through one door, files stay small: read from the source itself."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "src"

# Where a module stands; it may import from lower levels, and within its own package. Longest prefix counts.
LEVELS = {  # with places kept for the packages to come
    "repgraph.__main__": 12,
    "repgraph.cli": 11,
    "repgraph.demo": 10,
    "repgraph.bench": 9,
    "repgraph.engine": 9,
    "repgraph.pictures": 8,
    "repgraph.recipes": 8,
    "repgraph.models": 7,
    "repgraph.data": 7,
    "repgraph": 6,  # the package itself: what users import
    "repgraph.layers": 5,
    "repgraph.info": 6,
    "repgraph.ops": 4,
    "repgraph.ops.api": 3,
    "repgraph.ops.normalised": 4,
    "repgraph.ops.product": 3,
    "repgraph.ops.reference": 2,
    "repgraph.ops.library": 2,
    "repgraph.ops.backends": 1,
    "repgraph.ops.checks": 1,
    "repgraph.ops.triton": 2,
    "repgraph.ops.cpu": 2,
    "repgraph.ops.formats": 1,
    "repgraph.ops.geometry": 0,
    "repgraph.ops.tf32": 0,
    "repgraph.arguments": 1,
    "repgraph.files": 1,
    "repgraph.errors": 0,
}
KERNELS = ("repgraph.ops.triton", "repgraph.ops.cpu")
# Pairs on one level that may meet: kernels allocate what the library describes.
ALLOWED = {(kernel, "repgraph.ops.library") for kernel in KERNELS}
BASE = {"torch", "numpy", "numba", "repgraph", *sys.stdlib_module_names}


def sources() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, source: str, is_package: bool, modules: set[str]) -> set[str]:
    """The modules that a module imports anywhere in it, as full names; not what only type checkers see."""
    tree = ast.parse(source)
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = name.split(".") if is_package else name.split(".")[:-1]
            base = base[: len(base) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{origin}.{alias.name}"
                found.add(full if full in modules else origin)
    return found


def place(name: str) -> str:
    """The entry of LEVELS that a module belongs to."""
    fits = [key for key in LEVELS if name == key or (key != "repgraph" and name.startswith(key + "."))]
    assert fits, f"{name} has no place in the order of imports: add it to LEVELS"
    return max(fits, key=len)


def one_way(name: str, imported: str) -> bool:
    here, there = place(name), place(imported)
    if here == there or (here, there) in ALLOWED:
        return True
    if name == "repgraph.info" and imported == "repgraph":  # the version
        return True
    return LEVELS[there] < LEVELS[here]


MODULES = sources()
IMPORTS = {
    name: imports(name, path.read_text(encoding="utf-8"), path.name == "__init__.py", set(MODULES))
    for name, path in MODULES.items()
}


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_one_way(name):
    ours = [i for i in IMPORTS[name] if i == "repgraph" or i.startswith("repgraph.")]
    assert [i for i in ours if not one_way(name, i)] == []


@pytest.mark.parametrize("name", MODULES)
def test_kernels_are_imported_by_nobody_else(name):
    kernels = [i for i in IMPORTS[name] if i.startswith(KERNELS)]
    assert [i for i in kernels if place(name) != place(i)] == []


@pytest.mark.parametrize("name", [n for n in MODULES if n.startswith(("repgraph.ops", "repgraph.layers"))])
def test_ops_and_layers_need_the_base_install_only(name):
    own = {"repgraph.ops.triton": {"triton"}, "repgraph.ops.cpu": {"llvmlite"}}  # llvmlite is numba's own
    allowed = BASE | own.get(place(name), set())
    assert {i.split(".")[0] for i in IMPORTS[name]} - allowed == set()


@pytest.mark.parametrize("name", [n for n in MODULES if not n.startswith(KERNELS)])
def test_numba_and_triton_stay_in_the_kernels(name):
    assert {i.split(".")[0] for i in IMPORTS[name]} & {"numba", "triton"} == set()


def test_library_is_the_door_to_the_kernels():
    users = [n for n, p in MODULES.items() if "import_module" in p.read_text(encoding="utf-8")]
    assert set(users) <= {"repgraph.ops.library", "repgraph.ops.backends", "repgraph.cli", "repgraph.info"}


@pytest.mark.parametrize("name", MODULES)
def test_files_are_short_and_explained(name):
    text = MODULES[name].read_text(encoding="utf-8")
    assert len(text.splitlines()) < 500
    assert ast.get_docstring(ast.parse(text)), "a module says in its docstring what it is for"


def test_the_reader_of_imports_sees_them():
    source = "import a.b\nfrom .c import d\nfrom . import e\ndef f():\n    from repgraph.ops import api\n"
    modules = {"p.q.e", "repgraph.ops.api"}
    assert imports("p.q.m", source, False, modules) == {"a.b", "p.q.c", "p.q.e", "repgraph.ops.api"}


@pytest.mark.parametrize(
    ("name", "imported", "fine"),
    [
        ("repgraph.ops.geometry", "repgraph.ops.reference", False),
        ("repgraph.ops.reference", "repgraph.ops.library", False),
        ("repgraph.ops.api", "repgraph.ops.geometry", True),
        ("repgraph.ops.api", "repgraph.layers.simple", False),
        ("repgraph.layers.simple", "repgraph.ops", True),
        ("repgraph.models.rgnet", "repgraph.data.voc", False),
        ("repgraph.bench.operator", "repgraph.cli", False),
        ("repgraph.cli", "repgraph.bench.operator", True),
    ],
)
def test_the_order_is_what_it_should_be(name, imported, fine):
    assert one_way(name, imported) is fine
