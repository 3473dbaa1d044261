"""Run Python in a fresh process where some packages are not installed."""

import subprocess
import sys
import textwrap

_HIDE = """
import importlib.machinery, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        hidden = name.split(".")[0] in {packages!r}
        return None if hidden else importlib.machinery.PathFinder.find_spec(name, path, target)
    @staticmethod
    def find_distributions(*arguments, **keywords):
        return importlib.machinery.PathFinder.find_distributions(*arguments, **keywords)
sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
"""


def run_without(packages: tuple[str, ...], script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a script in which importing ``packages`` fails as if they had never been installed."""
    code = _HIDE.format(packages=packages) + textwrap.dedent(script)
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True)
