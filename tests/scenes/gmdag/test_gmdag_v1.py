"""Version 1 files: exact round trips, every fault named with its offset, distances that keep their promises."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from navi_core.config import CompileConfig
from navi_core.errors import GmdagError, SceneError, SceneTooLargeError
from navi_core.scenes import compile_mesh, generate_scene, load_gmdag
from navi_core.scenes.gmdag.file import read_gmdag
from navi_core.scenes.gmdag.octree import (
    _gather,
    _round_down,
    _spread,
    child_mask,
    inner_words,
    is_leaf,
    leaf_distance,
    leaf_semantic,
    leaf_words,
    low_index,
    morton,
    positions,
)
from navi_core.scenes.gmdag.scene import HEADER
from navi_core.scenes.gmdag.version1 import encode_v1
from tests.conftest import box_triangles, mesh_of
from tests.scenes.conftest import box_distance, chain, v1_bytes
from tests.scenes.gmdag.v1_oracle import v1_distance_at, v1_leaf_at

LOW, HIGH = (-2.0, 0.0, -2.0), (2.0, 2.5, 2.0)


@pytest.fixture(scope="module")
def own_box(tmp_path_factory):
    """Our own version 1 output of the closed box at 256, read back."""
    scene = compile_mesh(mesh_of(box_triangles(LOW, HIGH), "box"), CompileConfig(resolution=256))
    return load_gmdag(scene.save(tmp_path_factory.mktemp("v1") / "box.gmdag", version=1))


def test_words_pack_and_unpack_exactly():
    distance = np.array([0.0, 0.25, 3.5, 100.0], np.float16)
    semantic = np.array([0, 1, 77, 65535])
    words = leaf_words(distance, semantic)
    assert is_leaf(words).all()
    np.testing.assert_array_equal(leaf_distance(words), distance)
    np.testing.assert_array_equal(leaf_semantic(words), semantic)
    inner = inner_words(np.array([1, 255]), np.array([5, 2**32 - 1]))
    assert not is_leaf(inner).any()
    np.testing.assert_array_equal(child_mask(inner), [1, 255])
    np.testing.assert_array_equal(low_index(inner), [5, 2**32 - 1])


@given(st.lists(st.tuples(*[st.integers(0, 2047)] * 3), min_size=1, max_size=50))
def test_morton_keys_keep_positions_and_order_octants(voxels):
    index = np.array(voxels, np.int64)
    keys = morton(index)
    np.testing.assert_array_equal(positions(keys), index)
    np.testing.assert_array_equal(keys & 7, (index[:, 0] & 1) | (index[:, 1] & 1) << 1 | (index[:, 2] & 1) << 2)
    np.testing.assert_array_equal(_gather(_spread(index[:, 0])), index[:, 0])


@given(st.lists(st.floats(0, 1e5, allow_nan=False), min_size=1, max_size=50))
def test_a_lower_bound_stays_one_in_fp16(values):
    exact = np.array(values)
    half = _round_down(exact).astype(np.float64)
    assert (half <= exact).all()
    assert (half >= np.minimum(exact, 65504) * (1 - 2**-10) - 6e-8).all()


@settings(max_examples=12, deadline=None)
@given(
    resolution=st.sampled_from([16, 32, 64, 2048]),
    lower=st.tuples(*[st.floats(-1e4, 1e4, width=32)] * 3),
    voxel=st.floats(2**-10, 8, width=32),
    distance=st.floats(0, 1000, width=16),
    semantic=st.integers(0, 65535),
)
def test_any_valid_tree_survives_reading_and_writing_bit_for_bit(resolution, lower, voxel, distance, semantic):
    nodes = chain(resolution.bit_length() - 1, distance, semantic)
    data = v1_bytes(nodes, resolution=resolution, lower=lower, voxel=voxel)
    scene = read_gmdag(data, "x.gmdag")
    assert encode_v1(scene.nodes, scene.resolution, scene.bounds[0], scene.voxel_size) == data
    np.testing.assert_allclose(scene.bounds[1] - scene.bounds[0], resolution * voxel, rtol=1e-6, atol=1e-2)
    word, size = v1_leaf_at(scene.nodes, resolution, (0, 0, 0))
    assert size == 1
    assert word == int(nodes[resolution.bit_length() - 1])


def test_a_root_that_is_a_leaf_is_a_scene():
    scene = read_gmdag(v1_bytes(leaf_words(np.array([2.0], np.float16), np.array([0]))), "x.gmdag")
    assert v1_leaf_at(scene.nodes, 16, (5, 6, 7)) == (int(scene.nodes[0]), 16)
    np.testing.assert_array_equal(scene.mesh_bounds, scene.bounds)


def patched(index: int, word: int) -> np.ndarray:
    nodes = chain()
    nodes[index] = np.uint64(word)
    return nodes


def long_chain() -> np.ndarray:
    return chain(6)


BROKEN = {
    "wrong magic": (v1_bytes(chain(), magic=b"GDAX"), "not a .gmdag file", 0),
    "unknown version": (v1_bytes(chain(), version=7), "version 7", 4),
    "resolution 0": (v1_bytes(chain(), resolution=0), "resolution 0", 8),
    "resolution no power of two": (v1_bytes(chain(), resolution=100), "resolution 100", 8),
    "resolution too large": (v1_bytes(chain(), resolution=1 << 31), "resolution", 8),
    "minimum corner NaN": (v1_bytes(chain(), lower=(0, float("nan"), 0)), "finite", 16),
    "minimum corner infinite": (v1_bytes(chain(), lower=(0, 0, float("inf"))), "finite", 20),
    "voxel size 0": (v1_bytes(chain(), voxel=0.0), "voxel size", 24),
    "voxel size negative": (v1_bytes(chain(), voxel=-0.1), "voxel size", 24),
    "voxel size NaN": (v1_bytes(chain(), voxel=float("nan")), "voxel size", 24),
    "voxel size beyond float32": (v1_bytes(chain(), voxel=3e38), "voxel size", 24),
    "no words": (v1_bytes(np.zeros(0, np.uint64)), "0 words", 28),
    "truncated magic": (b"GDA", "truncated", 3),
    "truncated header": (v1_bytes(chain())[:20], "truncated", 20),
    "truncated words": (v1_bytes(chain())[:-3], "truncated", 32 + 8 * 9 - 3),
    "a count that would need 32 GiB": (v1_bytes(chain(), count=2**32 - 1), "truncated", 32 + 8 * 9),
    "trailing bytes": (v1_bytes(chain()) + b"\0", "trailing", 32 + 8 * 9),
    "empty mask": (v1_bytes(patched(1, 6)), "empty mask", 32 + 8 * 1),
    "table out of range": (v1_bytes(patched(2, (1 << 55) | 9)), "pointer out of range", 32 + 8 * 2),
    "table runs over the end": (v1_bytes(patched(2, (3 << 55) | 8)), "pointer out of range", 32 + 8 * 2),
    "child out of range": (v1_bytes(patched(6, 9)), "pointer out of range", 32 + 8 * 6),
    "cycle to the root": (v1_bytes(patched(8, 0)), "cycle", 32),
    "cycle to itself": (v1_bytes(patched(7, 2)), "cycle", 32 + 8 * 2),
    "deeper than the resolution": (v1_bytes(long_chain()), "too deep", 32 + 8 * 4),
    "infinite distance in free space": (v1_bytes(chain(distance=np.inf, semantic=0)), "non-finite", 32 + 8 * 4),
    "NaN distance in free space": (v1_bytes(chain(distance=np.nan, semantic=0)), "non-finite", 32 + 8 * 4),
    "negative distance": (v1_bytes(chain(distance=-1.0)), "negative", 32 + 8 * 4),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_with_reason_and_offset(name, tmp_path):
    data, reason, offset = BROKEN[name]
    file = tmp_path / "broken.gmdag"
    file.write_bytes(data)
    with pytest.raises(GmdagError, match=reason) as caught:
        load_gmdag(file)
    assert caught.value.offset == offset
    assert caught.value.path == file
    assert str(file) in str(caught.value)
    assert caught.value.exit_code != 0


def test_missing_file_error_names_nearby_files(tmp_path):
    (tmp_path / "other.gmdag").write_bytes(b"")
    with pytest.raises(GmdagError, match=r"does not exist.*other\.gmdag.*navi scenes compile"):
        load_gmdag(tmp_path / "none.gmdag")
    with pytest.raises(GmdagError, match="neither does the folder"):
        load_gmdag(tmp_path / "nowhere" / "none.gmdag")


def test_a_long_cycle_of_shared_nodes_is_found_in_linear_time():
    # Every inner node lists the next one eight times: a walk without memory would take 8**depth steps.
    count = 20_000
    inner = inner_words(np.full(count, 255), count + 8 * np.arange(count))
    tables = np.repeat((np.arange(count) + 1) % count, 8).astype(np.uint64)
    with pytest.raises(GmdagError, match="cycle"):
        read_gmdag(v1_bytes(np.concatenate([inner, tables]), resolution=2048), "x.gmdag")


def test_a_small_file_cannot_unfold_into_billions_of_voxels():
    # Eleven inner nodes, each of whose eight children is the next: 8¹¹ voxels, all of them surface.
    inner = inner_words(np.full(11, 255), 12 + 8 * np.arange(11))
    leaf = leaf_words(np.array([0], np.float16), np.array([1]))
    tables = np.repeat(np.arange(1, 12), 8).astype(np.uint64)
    with pytest.raises(GmdagError, match="100 words unfold into"):
        read_gmdag(v1_bytes(np.concatenate([inner, leaf, tables]), resolution=2048), "x.gmdag")


def test_surface_beyond_memory_is_refused_before_it_is_built(monkeypatch):
    # Seven inner nodes, each of whose eight children is the next: 8⁷ voxels in 64 words.
    inner = inner_words(np.full(7, 255), 8 + 8 * np.arange(7))
    leaf = leaf_words(np.array([0], np.float16), np.array([1]))
    tables = np.repeat(np.arange(1, 8), 8).astype(np.uint64)
    monkeypatch.setattr("navi_core.scenes.memory.available_memory", lambda: 1 << 30)
    with pytest.raises(SceneTooLargeError, match=r"needs about .* GiB, 1\.0 GiB are available"):
        read_gmdag(v1_bytes(np.concatenate([inner, leaf, tables]), resolution=128), "x.gmdag")


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 32 + 8 * 9 - 1), st.integers(1, 255))
def test_one_flipped_byte_is_read_or_refused_but_never_crashes(position, change):
    data = bytearray(v1_bytes(chain()))
    data[position] ^= change
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refusal = None
        try:
            scene = read_gmdag(bytes(data), "x")
        except GmdagError as error:
            refusal = error
        if refusal is not None:
            assert refusal.offset is not None
        else:
            assert np.isfinite(scene.bounds).all()
            assert np.isfinite(leaf_distance(scene.nodes[v1_leaf_index(scene.nodes)]))


def v1_leaf_index(nodes: np.ndarray) -> np.ndarray:
    return np.flatnonzero(is_leaf(nodes))[:1]


def test_non_finite_near_surface_leaves_read_as_zero_in_one_counted_warning():
    nodes = chain(distance=np.inf, semantic=3)
    second = leaf_words(np.array([np.nan], np.float16), np.array([4]))
    nodes = np.concatenate([nodes, second, np.array([4, 9], np.uint64)])
    nodes[3] = inner_words(np.array([3]), np.array([10]))[0]
    with pytest.warns(UserWarning, match="2 near-surface leaves") as caught:
        scene = read_gmdag(v1_bytes(nodes), "x.gmdag")
    assert len(caught) == 1
    np.testing.assert_array_equal(leaf_distance(scene.nodes[[4, 9]]), [0.0, 0.0])
    np.testing.assert_array_equal(leaf_semantic(scene.nodes[[4, 9]]), [3, 4])
    assert scene.semantic_names == {1: "surface", 3: "semantic_3", 4: "semantic_4"}


def test_finest_leaves_hold_the_distance_at_their_minimum_corner(own_box):
    rng = np.random.default_rng(0)
    on_surface = rng.uniform(LOW, HIGH, (400, 3))
    axis, side = rng.integers(3, size=400), rng.integers(2, size=400)
    on_surface[np.arange(400), axis] = np.where(side, np.array(HIGH)[axis], np.array(LOW)[axis])
    points = on_surface + rng.uniform(-1, 1, (400, 3)) * 0.5 * own_box.voxel_size
    distance, size, semantic = v1_distance_at(own_box.nodes, 256, own_box.bounds[0], own_box.voxel_size, points)
    cell = np.floor((points - own_box.bounds[0]) / own_box.voxel_size)
    corner = own_box.bounds[0] + cell * own_box.voxel_size
    through = np.abs(points - on_surface).max(axis=1) < 1e-3  # voxels that surely hold the surface point
    near = size == 1
    assert near[through].all()
    assert (semantic[near & np.isfinite(distance)] == 1).all()
    known = near & np.isfinite(distance)
    assert known.sum() > 250
    np.testing.assert_allclose(distance[known], box_distance(corner[known], LOW, HIGH), atol=own_box.voxel_size * 1e-3)


def test_every_coarse_leaf_is_a_lower_bound_for_its_whole_cell(own_box):
    rng = np.random.default_rng(1)
    points = rng.uniform(own_box.bounds[0], own_box.bounds[1], (3000, 3))
    distance, size, semantic = v1_distance_at(own_box.nodes, 256, own_box.bounds[0], own_box.voxel_size, points)
    coarse = size > 1
    assert coarse.sum() > 2000
    assert (semantic[coarse] == 0).all()
    assert (distance[coarse] <= box_distance(points[coarse], LOW, HIGH)).all()
    assert np.isfinite(distance[coarse]).all()
    assert distance[size == 32].max() > 10 * own_box.voxel_size


def test_the_surface_bounds_are_recovered_exactly(own_box):
    np.testing.assert_allclose(own_box.mesh_bounds, [LOW, HIGH], atol=own_box.voxel_size * 1e-3)


def test_v1_box_agrees_with_the_independent_writer(own_box, real_scenes: Path):
    theirs = load_gmdag(real_scenes / "house_box_256_v1.gmdag")
    np.testing.assert_allclose(own_box.bounds, theirs.bounds, atol=1e-6)
    assert own_box.voxel_size == theirs.voxel_size
    np.testing.assert_allclose(theirs.mesh_bounds, own_box.mesh_bounds, atol=0.01)
    rng = np.random.default_rng(2)
    points = rng.uniform(theirs.bounds[0], theirs.bounds[1], (4000, 3))
    mine, my_size, _ = v1_distance_at(own_box.nodes, 256, own_box.bounds[0], own_box.voxel_size, points)
    other, other_size, _ = v1_distance_at(theirs.nodes, 256, theirs.bounds[0], theirs.voxel_size, points)
    both = (my_size == 1) & (other_size == 1) & np.isfinite(mine) & np.isfinite(other)
    np.testing.assert_allclose(mine[both], other[both], atol=0.02 * theirs.voxel_size)
    # Free space: lower bounds of the same distance; the other writer's reach up to two voxels too far.
    true = box_distance(points, LOW, HIGH)
    free = (other_size > 1) & np.isfinite(other)
    assert (other[free] <= true[free] + 2.0 * theirs.voxel_size).all()
    assert (mine[free & np.isfinite(mine)] <= true[free & np.isfinite(mine)] + theirs.voxel_size).all()


def traced(scene, origins: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Return the depth (P, R) [m] of rays through the runtime field."""
    import torch

    from navi_core.world import Field

    hits = Field([scene]).cast_rays(
        torch.tensor(origins, dtype=torch.float32),
        torch.tensor(directions, dtype=torch.float32),
        torch.zeros(len(origins), dtype=torch.int64),
        100.0,
    )
    assert bool(hits.valid.all())
    return hits.depth.numpy()


def box_depth(origins: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Return the exact depth (P, R) [m] from inside the box."""
    with np.errstate(divide="ignore"):
        t = np.where(
            directions > 0,
            (np.array(HIGH) - origins[:, None]) / directions,
            (np.array(LOW) - origins[:, None]) / directions,
        )
    return np.where(directions == 0, np.inf, t).min(axis=2)


@pytest.mark.parametrize("writer", ["ours", "theirs"])
def test_rays_in_the_version_1_box_end_on_its_walls_and_within_a_voxel_at_its_edges(writer, own_box, request):
    scene = own_box
    if writer == "theirs":
        scene = load_gmdag(request.getfixturevalue("real_scenes") / "house_box_256_v1.gmdag")
    rng = np.random.default_rng(5)
    origins = np.concatenate([[[0, 1.25, 0]], rng.uniform(np.array(LOW) + 0.3, np.array(HIGH) - 0.3, (20, 3))])
    directions = np.concatenate([np.eye(3), -np.eye(3), rng.normal(size=(200, 3))])
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    depth = traced(scene, origins, directions)
    np.testing.assert_allclose(depth[0, :6], [2, 1.25, 2, 2, 1.25, 2], atol=0.01 * scene.voxel_size)
    exact = box_depth(origins, np.broadcast_to(directions, (len(origins), *directions.shape)))
    end = origins[:, None] + depth[..., None] * directions
    off = box_distance(end.reshape(-1, 3), LOW, HIGH) / scene.voxel_size
    wrong = np.abs(depth - exact) / scene.voxel_size
    assert np.median(off) < 0.001
    assert np.quantile(off, 0.95) < 0.02
    assert np.quantile(wrong, 0.95) < 0.05
    # Corners near an edge of the box know one wall or the other: there the two differ by up to a voxel.
    assert off.max() < 0.7


def test_a_leaf_without_neighbours_is_hit_where_the_ray_is_next_to_its_corner():
    scene = read_gmdag(v1_bytes(chain(distance=0.0, semantic=3)), "x.gmdag")
    corner, voxel = scene.bounds[0], scene.voxel_size
    start = corner + voxel * np.array([0.25, 0.25, 7.0])
    depth = traced(scene, start[None], np.array([[0.0, 0.0, -1.0]]))
    np.testing.assert_allclose(depth, 7.0 * voxel, atol=0.51 * voxel)  # a cube of one voxel stands around it


@pytest.mark.slow
def test_the_independent_house_loads_with_its_infinite_leaf_counted(real_scenes: Path):
    with pytest.warns(UserWarning, match="1 near-surface leaves"):
        house = load_gmdag(real_scenes / "small_house_256_v1.gmdag")
    np.testing.assert_allclose(house.mesh_bounds, [[-9.5, 0, -5.7], [9.5, 3, 5.7]], atol=0.01)
    assert house.semantic_names == {1: "surface"}


@pytest.mark.slow
def test_writing_twice_gives_the_same_bytes_and_shares_equal_subtrees(tmp_path):
    scene = compile_mesh(generate_scene("maze", 3), CompileConfig(resolution=128))
    first, second = scene.save(tmp_path / "a.gmdag", 1), scene.save(tmp_path / "b.gmdag", 1)
    assert first.read_bytes() == second.read_bytes()
    loaded = load_gmdag(first)
    assert set(leaf_semantic(loaded.nodes[is_leaf(loaded.nodes)])) - {0} <= set(scene.semantic_names)
    # Our writer stores no leaf and no inner node twice.
    leaves = loaded.nodes[is_leaf(loaded.nodes)]
    assert len(np.unique(leaves)) == len(leaves)
    again = loaded.save(tmp_path / "c.gmdag", 1)
    assert again.read_bytes() == first.read_bytes()


def test_a_version_1_scene_cannot_become_version_2(own_box, tmp_path):
    with pytest.raises(SceneError, match="holds no exact triangles"):
        own_box.save(tmp_path / "x.gmdag", version=2)
    with pytest.raises(SceneError, match="allowed: 1, 2"):
        own_box.save(tmp_path / "x.gmdag", version=3)
    assert list(tmp_path.iterdir()) == []


def test_header_layout_is_the_documented_one():
    assert HEADER.size == 32
    data = encode_v1(np.array([2**63], np.uint64), 32, (1.0, 2.0, 3.0), 0.5)
    assert data[:4] == b"GDAG"
    assert np.frombuffer(data, "<u4", 2, 4).tolist() == [1, 32]
    assert np.frombuffer(data, "<f4", 4, 12).tolist() == [1.0, 2.0, 3.0, 0.5]
    assert np.frombuffer(data, "<u4", 1, 28).tolist() == [1]


def test_long_chain_is_refused_in_linear_time():
    """A walk that scans its whole path at every step would take half a minute for 100,000 nodes."""
    began = time.process_time()
    with pytest.raises(GmdagError, match="deep"):
        read_gmdag(v1_bytes(chain(100_000)), "chain.gmdag")
    assert time.process_time() - began < 5


def test_version_1_without_triangles_is_refused(box_scene, tmp_path):
    with pytest.raises(SceneError, match="no triangles"):
        replace(box_scene, triangles=None).save(tmp_path / "a.gmdag", version=1)
