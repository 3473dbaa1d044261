"""Try an installed package: the operator against its definition, a layer, and the command."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import torch

import repgraph


def main() -> None:
    installed = Path(repgraph.__file__).resolve()
    assert "site-packages" in installed.parts, f"{installed} is a checkout"
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 16, 13, 17)
    offsets = 3 * torch.randn(1, 2 * 5, 13, 17)
    y = repgraph.representative_attention(query, key, value, offsets, backend="cpu")
    expected = repgraph.representative_attention(query, key, value, offsets, backend="reference")
    torch.testing.assert_close(y, expected)
    layer = repgraph.BottleneckRepGraph(32, 16)
    x = torch.randn(2, 32, 13, 17, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None and bool(x.grad.isfinite().all())

    command = Path(sysconfig.get_path("scripts")) / "repgraph"
    run = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"repgraph {repgraph.__version__}\n", run.stdout
    run = subprocess.run([command, "info"], capture_output=True, text=True, check=True)
    assert "cpu        yes" in run.stdout, run.stdout
    run = subprocess.run([command, "predict", "photo.jpg"], capture_output=True, text=True)
    assert run.returncode == 2 and "Traceback" not in run.stderr, run.stderr
    assert "weights/" in run.stderr, run.stderr  # where to get a network
    print(f"repgraph {repgraph.__version__} with torch {torch.__version__}, Python {sys.version.split()[0]}: all right")


if __name__ == "__main__":
    main()
