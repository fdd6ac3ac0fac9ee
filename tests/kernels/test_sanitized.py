"""The C++ kernels read nothing outside their arrays and do nothing undefined, whatever the rays."""

from __future__ import annotations

from pathlib import Path

import pytest

from navi_core.config import CompileConfig
from navi_core.scenes import compile_mesh, generate_scene
from tests.kernels.sanitizers import run_sanitized, sanitized_library


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_odd_rays_under_address_and_undefined_behaviour_sanitizers(tmp_path: Path, box_scene) -> None:
    """Rays, steps, lookahead and advantages: four minutes on a busy machine."""
    library = sanitized_library(tmp_path)
    files = [tmp_path / f"{name}.gmdag" for name in ("box", "maze", "octree")]
    box_scene.save(files[0])
    compile_mesh(generate_scene("maze", 0), CompileConfig(resolution=128)).save(files[1])
    box_scene.save(files[2], version=1)
    printed = run_sanitized("tests.kernels.sanitized_rays", str(library), "100", *map(str, files), timeout=900)
    assert printed.endswith("clean")
