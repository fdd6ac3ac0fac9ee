"""A build of the C++ kernels with sanitizers, and commands that run with their runtime preloaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from navi_core.kernels.native.library import LIBRARY, NativeUnavailableError, compile_library, find_compiler

ROOT = Path(__file__).resolve().parents[2]
_FLAGS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


def sanitized_library(folder: Path) -> Path:
    """Build the kernels into the folder; skips the test where this compiler has no sanitizers."""
    compiler = find_compiler()
    assert compiler is not None
    try:
        compile_library(compiler, folder / LIBRARY, _FLAGS)
    except NativeUnavailableError as error:
        pytest.skip(f"no sanitizers with this compiler: {error}")
    return folder / LIBRARY


def run_sanitized(module: str, *arguments: str, timeout: float) -> str:
    """Run a module with the sanitizers' runtime; return what it wrote, fails with what they found."""
    compiler = find_compiler()
    assert compiler is not None
    command = [*compiler, "-print-file-name=libasan.so"]
    runtime = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(runtime).is_file():
        pytest.skip("the runtime of the address sanitizer is not here")
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",
        "NUMBA_NUM_THREADS": "2",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()
