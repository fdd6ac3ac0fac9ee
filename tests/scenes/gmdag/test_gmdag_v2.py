"""Version 2 files: every mesh survives a round trip, damage anywhere in the content is noticed."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from navi_core.config import CompileConfig
from navi_core.errors import GmdagError
from navi_core.scenes import build_vocabulary, compile_mesh, generate_scene, load_gmdag, mesh_from_arrays
from navi_core.scenes.gmdag.file import read_gmdag

CONFIG = CompileConfig(resolution=16)


@pytest.fixture(scope="module")
def maze_file(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("v2") / "maze.gmdag"
    return compile_mesh(generate_scene("maze", 2), CONFIG).save(path).read_bytes()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    corners=st.lists(st.tuples(*[st.floats(-20, 20, width=32)] * 3), min_size=3, max_size=30, unique=True),
    names=st.lists(st.text("abcäß漢", min_size=1, max_size=5), min_size=1, max_size=4, unique=True),
    data=st.data(),
)
def test_any_mesh_survives_a_round_trip_bit_for_bit(corners, names, data, tmp_path):
    vocabulary = build_vocabulary(names)
    points = np.array([[0, 0, 0], [3, 0, 0], [0, 3, 0], *corners], np.float32)
    index = st.lists(st.integers(0, len(points) - 1), min_size=3, max_size=3, unique=True)
    faces = [[0, 1, 2], *data.draw(st.lists(index, max_size=20))]
    semantic = data.draw(st.lists(st.sampled_from(sorted(vocabulary)), min_size=len(faces), max_size=len(faces)))
    scene = compile_mesh(mesh_from_arrays("any", points, faces, semantic, vocabulary), CONFIG)
    path = scene.save(tmp_path / "any.gmdag")
    read = load_gmdag(path)
    np.testing.assert_array_equal(read.dag.children, scene.dag.children)
    np.testing.assert_array_equal(read.dag.bounds, scene.dag.bounds)
    np.testing.assert_array_equal(read.dag.items, scene.dag.items)
    assert read.content_hash() == scene.content_hash()
    assert read.semantic_names == scene.semantic_names
    np.testing.assert_array_equal(read.triangles, scene.triangles)
    np.testing.assert_array_equal(read.triangle_semantic, scene.triangle_semantic)
    np.testing.assert_array_equal(read.tree.grid, scene.tree.grid)
    np.testing.assert_array_equal(read.tree.records, scene.tree.records)
    np.testing.assert_array_equal(read.tree.items, scene.tree.items)
    np.testing.assert_array_equal(read.mesh_bounds, scene.mesh_bounds)
    again = read.save(tmp_path / "again.gmdag")
    assert again.read_bytes() == path.read_bytes()


def test_a_file_cut_anywhere_is_refused(maze_file):
    for length in [*range(0, 80), *np.linspace(80, len(maze_file) - 1, 60).astype(int)]:
        with pytest.raises(GmdagError) as caught:
            read_gmdag(maze_file[:length], "cut.gmdag")
        assert caught.value.offset is not None


def test_damaged_content_and_trailing_bytes_are_refused(maze_file):
    rng = np.random.default_rng(0)
    for position in [*range(32, 64), *rng.integers(64, len(maze_file), 100)]:
        data = bytearray(maze_file)
        data[position] ^= 1 << int(rng.integers(8))
        with pytest.raises(GmdagError):
            read_gmdag(bytes(data), "damaged.gmdag")
    with pytest.raises(GmdagError):
        read_gmdag(maze_file + b"\0" * 8, "long.gmdag")


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (0, b"GDAX", "not a .gmdag file"),
        (4, struct.pack("<I", 3), "version 3 is not supported"),
        (8, struct.pack("<I", 100), "resolution 100"),
        (8, struct.pack("<I", 2**31), "resolution"),
        (16, struct.pack("<f", np.nan), "corner"),
        (24, struct.pack("<f", 0.0), "voxel size"),
        (24, struct.pack("<f", np.inf), "voxel size"),
        (28, struct.pack("<I", 2**32 - 1), "truncated"),
    ],
)
def test_a_broken_header_is_refused_by_field(maze_file, tmp_path, offset, value, reason):
    data = bytearray(maze_file)
    data[offset : offset + len(value)] = value
    file = tmp_path / "header.gmdag"
    file.write_bytes(bytes(data))
    with pytest.raises(GmdagError, match=reason) as caught:
        load_gmdag(file)
    assert caught.value.offset is not None
