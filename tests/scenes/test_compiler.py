"""Compilation: the cube, reuse of unchanged files, and never a half-written one."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import numpy as np
import pytest

import navi_core.scenes.compiler as compiler
import navi_core.scenes.readers.mesh_file as reader
from navi_core.config import CompileConfig, parse_config
from navi_core.errors import ConfigError, MeshError, SceneError
from navi_core.scenes import Manifest, compile_mesh, compile_to_file, generate_scene, load_gmdag, store_verdict
from navi_core.scenes.gmdag.scene import write_atomically
from tests.conftest import box_triangles, mesh_of
from tests.scenes.mesh_files import room

CONFIG = CompileConfig(resolution=64)


@pytest.fixture(scope="module")
def maze():
    return generate_scene("maze", 1)


def test_the_cube_is_centred_on_the_mesh_and_padded():
    scene = compile_mesh(mesh_of(box_triangles((1, 0, 2), (5, 2.5, 5)), "box"), CompileConfig(resolution=256))
    assert scene.voxel_size == pytest.approx(6 / 256, rel=1e-6)
    np.testing.assert_allclose(scene.mesh_bounds, [[1, 0, 2], [5, 2.5, 5]])
    np.testing.assert_allclose(scene.bounds, [[0, -1.75, 0.5], [6, 4.25, 6.5]], atol=1e-5)
    assert scene.triangles.shape == (12, 3, 3)
    assert scene.triangles.dtype == np.float32
    assert scene.triangle_semantic.tolist() == [1] * 12
    assert (scene.version, scene.name, scene.nodes) == (2, "box", None)


def test_padding_and_resolution_are_applied(maze):
    scene = compile_mesh(maze, CompileConfig(resolution=32, padding=2.0))
    size = (maze.bounds[1] - maze.bounds[0]).max() + 4
    assert scene.voxel_size * 32 == pytest.approx(size, rel=1e-5)
    with pytest.raises(ConfigError, match="power of two"):
        parse_config(CompileConfig, {"resolution": 100})


def test_progress_is_reported_from_start_to_end(maze):
    reported = []
    compile_mesh(maze, CONFIG, progress=lambda stage, share: reported.append((stage, share)))
    shares = [share for _, share in reported]
    assert shares == sorted(shares)
    assert reported[0] == ("read", 0.0)
    assert reported[-1] == ("done", 1.0)
    assert list(dict.fromkeys(stage for stage, _ in reported)) == ["read", "bounds", "tree", "dag", "done"]


def test_compiling_a_file_reports_every_stage(maze, tmp_path):
    reported = []
    config = CompileConfig(resolution=32, decimate=0.25)
    compile_to_file(maze, tmp_path, config, progress=lambda stage, share: reported.append((stage, share)))
    assert list(dict.fromkeys(stage for stage, _ in reported)) == [
        "read", "bounds", "decimate", "tree", "dag", "write", "done",
    ]  # fmt: skip
    shares = [share for _, share in reported]
    assert shares == sorted(shares)


def test_an_unchanged_scene_is_not_compiled_again(maze, tmp_path, monkeypatch):
    first = compile_to_file(maze, tmp_path, CONFIG)
    stamp = first.path.stat().st_mtime_ns
    monkeypatch.setattr(compiler, "_compile", lambda *a, **k: pytest.fail("compiled again"))
    second = compile_to_file(maze, tmp_path, CONFIG)
    assert (first.skipped, second.skipped) == (False, True)
    assert second.path == first.path
    assert second.path.stat().st_mtime_ns == stamp
    assert second.scene.content_hash() == first.scene.content_hash()


def test_another_source_config_or_compiler_version_compiles_again(maze, tmp_path, monkeypatch):
    first = compile_to_file(maze, tmp_path, CONFIG)
    other_config = compile_to_file(maze, tmp_path, CompileConfig(resolution=64, padding=1.5))
    other_source = compile_to_file(replace(maze, source_hash="0" * 64), tmp_path, CONFIG)
    assert not other_config.skipped
    assert not other_source.skipped
    assert len({first.path, other_config.path, other_source.path}) == 3
    monkeypatch.setattr(compiler, "COMPILER_VERSION", compiler.COMPILER_VERSION + 1)
    newer = compile_to_file(maze, tmp_path, CONFIG)
    assert not newer.skipped
    assert newer.path == first.path


@pytest.mark.parametrize("damage", ["truncate", "flip", "sidecar", "delete"])
def test_a_damaged_result_is_rebuilt(maze, tmp_path, damage):
    first = compile_to_file(maze, tmp_path, CONFIG)
    whole = first.path.read_bytes()
    if damage == "truncate":
        first.path.write_bytes(whole[: len(whole) // 2])
    elif damage == "flip":
        first.path.write_bytes(whole[:200] + bytes([whole[200] ^ 255]) + whole[201:])
    elif damage == "sidecar":
        first.path.with_suffix(".json").write_text("{")
    else:
        first.path.unlink()
    again = compile_to_file(maze, tmp_path, CONFIG)
    assert not again.skipped
    assert again.path.read_bytes() == whole


def test_the_same_input_gives_the_same_bytes(maze, tmp_path):
    first, second = compile_to_file(maze, tmp_path / "a", CONFIG), compile_to_file(maze, tmp_path / "b", CONFIG)
    assert first.path.read_bytes() == second.path.read_bytes()


def test_file_holds_every_field_of_the_scene(maze, tmp_path):
    made = compile_to_file(maze, tmp_path, CONFIG, name="renamed")
    read = load_gmdag(made.path)
    assert made.path.name.startswith("renamed-")
    for field in ("name", "resolution", "voxel_size", "semantic_names", "source_hash", "compile_hash", "verdict"):
        assert getattr(read, field) == getattr(made.scene, field), field
    np.testing.assert_array_equal(read.bounds, made.scene.bounds)
    np.testing.assert_array_equal(read.mesh_bounds, made.scene.mesh_bounds)
    np.testing.assert_array_equal(read.triangles, made.scene.triangles)
    np.testing.assert_array_equal(read.triangle_semantic, made.scene.triangle_semantic)
    assert read.content_hash() == made.scene.content_hash()


def test_a_stored_verdict_keeps_the_file_current(maze, tmp_path):
    made = compile_to_file(maze, tmp_path, CONFIG)
    store_verdict(made.path, made.scene, "MARGINAL")
    again = compile_to_file(maze, tmp_path, CONFIG)
    assert again.skipped
    assert again.scene.verdict == "MARGINAL"
    assert again.scene.content_hash() == made.scene.content_hash()


def test_write_error_leaves_no_file(maze, tmp_path, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    # Once before: what is compiled on its first call is written to a cache, by the same os.replace.
    scene = compile_mesh(maze, CONFIG)
    for version in (1, 2):
        scene.save(tmp_path / "before.gmdag", version).unlink()
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(SceneError, match="No space left"):
        compile_to_file(maze, tmp_path, CONFIG)
    with pytest.raises(SceneError, match="No space left"):
        scene.save(tmp_path / "x.gmdag", version=1)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_killed_writers_are_removed(tmp_path):
    file = tmp_path / "a[1].gmdag"
    old, new, other = ".a[1].gmdag.x1______.tmp", ".a[1].gmdag.x2______.tmp", ".a1.gmdag.x3______.tmp"
    for name, age in ((old, 7200), (new, 60), (other, 7200)):
        (tmp_path / name).write_bytes(b"part")
        then = time.time() - age
        os.utime(tmp_path / name, (then, then))
    write_atomically(file, b"whole")
    # Files of a live writer and of another scene are kept.
    assert sorted(path.name for path in tmp_path.iterdir()) == [other, new, file.name]
    Manifest((), {}).write(tmp_path / "manifest.json")
    assert not (tmp_path / other).exists() and (tmp_path / new).exists()


def test_a_failed_rewrite_keeps_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "x"
    write_atomically(file, b"old")
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(SceneError, match="disk"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("distance", [1e6, 1e9, 1e12])
def test_mesh_too_far_from_the_origin_is_refused(distance):
    far = mesh_of(box_triangles((distance, 0, 0), (distance + 4, 2.5, 4)), "far")
    with pytest.raises(MeshError, match="nearer to the origin"):
        compile_mesh(far, CompileConfig(resolution=512))
    compile_mesh(mesh_of(box_triangles((1000, 0, 0), (1004, 2.5, 4)), "near enough"), CONFIG)


def test_file_changed_during_reading_is_refused(tmp_path, monkeypatch):
    file, read = room(tmp_path / "room.glb"), reader.read_parts

    def overtaken(path):
        parts = read(path)
        path.write_bytes(path.read_bytes() + b"more")
        return parts

    monkeypatch.setattr(reader, "read_parts", overtaken)
    with pytest.raises(MeshError, match=r"room\.glb: changed while it was read"):
        compile_to_file(file, tmp_path / "out", CONFIG)
    assert not (tmp_path / "out").exists()
