"""The memory estimate: sufficient, not excessive, and a refusal with a remedy."""

from __future__ import annotations

import os
import tracemalloc

import numpy as np
import pytest

import navi_core.scenes.memory as memory
from navi_core.bench.engine.compile import tessellate
from navi_core.config import CompileConfig
from navi_core.errors import SceneError
from navi_core.scenes import compile_mesh, generate_scene
from navi_core.scenes.memory import available_memory, estimate_memory
from tests.conftest import mesh_of


@pytest.mark.parametrize(("triangles", "decimate"), [(30_000, None), (120_000, None), (15_000, 0.25)])
def test_memory_estimate_bounds_the_compilation_peak(triangles, decimate):
    mesh = tessellate(generate_scene("apartment", 0), triangles)
    config = CompileConfig(resolution=512, decimate=decimate)
    tracemalloc.start()
    compile_mesh(mesh, config)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    reported = estimate_memory(mesh, config)
    assert peak <= reported
    assert reported - memory._FIXED <= 6 * peak


def test_compilation_beyond_memory_is_refused_with_a_remedy(monkeypatch):
    mesh = generate_scene("maze", 0)
    monkeypatch.setattr(memory, "available_memory", lambda: 10 << 20)
    with pytest.raises(SceneError, match=r"maze_0000: .* needs about 0\.1 GiB, 0\.0 GiB are available; lower"):
        compile_mesh(mesh, CompileConfig(resolution=512))
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    compile_mesh(mesh, CompileConfig(resolution=32))


def test_available_memory_is_reported():
    assert available_memory() is None or available_memory() > 1 << 20


def test_a_file_that_would_not_fit_is_refused_before_it_is_read(tmp_path, monkeypatch):
    count = 1_000_000
    path = tmp_path / "large.stl"
    path.write_bytes(bytes(80) + count.to_bytes(4, "little"))
    os.truncate(path, 84 + 50 * count)
    monkeypatch.setattr(memory, "available_memory", lambda: 100 << 20)
    with pytest.raises(SceneError, match=r"reading 1,000,000 triangles needs about 0\.3 GiB, 0\.1 GiB are available"):
        compile_mesh(path)


def test_crossing_triangles_beyond_memory_are_refused_early(monkeypatch):
    mesh = mesh_of(np.random.default_rng(0).uniform(0, 10, (1000, 3, 3)), "hay")
    # Triangle sizes do not predict the memory of all levels, so every level checks it again.
    left = iter([1 << 40, 1 << 20])
    monkeypatch.setattr(memory, "available_memory", lambda: next(left))
    with pytest.raises(SceneError, match=r"hay: its triangles cross so much that [0-9,]+ places .* GiB are available"):
        compile_mesh(mesh, CompileConfig(resolution=512))
