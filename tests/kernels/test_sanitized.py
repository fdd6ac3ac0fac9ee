"""The C++ kernels read nothing outside their arrays and do nothing undefined, whatever the rays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from navi_core.config import CompileConfig
from navi_core.kernels.native import LIBRARY, NativeUnavailableError, compile_library, find_compiler
from navi_core.scenes import compile_mesh, generate_scene

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_odd_rays_under_address_and_undefined_behaviour_sanitizers(tmp_path: Path, box_scene) -> None:
    compiler = find_compiler()
    assert compiler is not None
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    try:
        compile_library(compiler, tmp_path / LIBRARY, flags)
    except NativeUnavailableError as error:
        pytest.skip(f"no sanitizers with this compiler: {error}")
    runtime = subprocess.run(
        [*compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(runtime).is_file():
        pytest.skip("the runtime of the address sanitizer is not here")
    files = [tmp_path / f"{name}.gmdag" for name in ("box", "maze", "octree")]
    box_scene.save(files[0])
    compile_mesh(generate_scene("maze", 0), CompileConfig(resolution=128)).save(files[1])
    box_scene.save(files[2], version=1)
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",
        "NUMBA_NUM_THREADS": "2",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.kernels.sanitized_rays", str(tmp_path / LIBRARY), "100", *map(str, files)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0 and done.stdout.strip().endswith("clean"), done.stderr[-3000:]
