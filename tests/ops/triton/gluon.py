"""Kernels in Gluon: compiled for a Hopper GPU anywhere, and whether there is one to run them."""

import os
import subprocess
import sys
from pathlib import Path

import torch

import repgraph

_COMPILE = """
import sys
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

feature = sys.argv[1]
{setup}
kind = {{"bf16": gl.bfloat16, "fp16": gl.float16, "fp32": gl.float32}}[feature]
signature = {{}}
for name in function.arg_names:
    if name in described:
        layout = gl.NVMMASharedLayout.get_default_for(described[name], kind)
        signature[name] = f"tensordesc<{{feature}}{{described[name]}},{{layout!r}}>"
    elif name in pointers:
        signature[name] = "*" + pointers[name]
    else:
        signature[name] = "constexpr" if name in constants else "i32"
source = GluonASTSource(function, signature, constants, {{}})
kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={{"num_warps": 4}})
print(kernel.metadata.shared)
print(kernel.asm["ptx"])
"""


def compile_for_hopper(setup: str, feature: str, folder: Path) -> tuple[int, str]:
    """Shared memory of a kernel in bytes, and its PTX.

    ``setup`` is code that gives ``function``, its ``constants``, the tiles that are ``described`` and the types of
    ``pointers``.
    """
    shared, ptx = compiled(_COMPILE.format(setup=setup), feature, folder).split("\n", 1)
    return int(shared), ptx


def compiled(code: str, argument: str, folder: Path) -> str:
    """What code that compiles kernels prints, in a process in which they are not interpreted."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(Path(repgraph.__file__).parents[1]), "TRITON_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code, argument], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


MOST_SHARED = 227 * 1024  # bytes that a program of a Hopper GPU may have


def has_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
