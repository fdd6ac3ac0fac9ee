"""The octree DAG: every triangle in every leaf that it touches, distances that never promise too much."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from navi_core.config import CompileConfig
from navi_core.kernels import TriangleBVH
from navi_core.scenes import compile_mesh, generate_scene, load_gmdag
from navi_core.scenes.gmdag.dag import build_dag, levels_of
from tests.conftest import box_triangles, mesh_of
from tests.scenes.gmdag.dag_oracle import EMPTY, SURFACE, clips, leaf_at, leaves, members

WIDER = 0.02

point = st.tuples(*[st.floats(1, 15, width=32)] * 3)


@st.composite
def triangles(draw) -> np.ndarray:
    """Triangles of every kind: plain, slivers, copies, on cell boundaries, from wall to wall of the cube."""
    out = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["any", "sliver", "copy", "on the grid", "large"]))
        a, b, c = (np.array(draw(point)) for _ in range(3))
        if kind == "sliver":
            c = a + (b - a) * draw(st.floats(0, 1)) + 1e-7
        elif kind == "on the grid":
            a, b, c = np.round(a), np.round(b), np.round(c)
        elif kind == "large":
            a, b = np.full(3, 0.5), np.array([15.5, 0.5, 15.5])
        out.append(out[-1] if kind == "copy" and out else np.stack([a, b, c]))
    return np.array(out, np.float64)


@settings(max_examples=12, deadline=None)
@given(triangles(), st.integers(1, 4))
def test_every_triangle_is_in_every_leaf_it_touches_and_in_no_other(corners, longest):
    dag = build_dag(corners, 16, longest)
    low, high = corners.min(axis=1), corners.max(axis=1)
    for kind, at, edge, value, _ in leaves(dag):
        near = np.flatnonzero(((low <= at + edge + 0.03) & (high >= at - 0.03)).all(axis=1))
        inner = [int(f) for f in near if clips(corners[f], at - WIDER + 1e-6, at + edge + WIDER - 1e-6)]
        outer = [int(f) for f in near if clips(corners[f], at - WIDER - 1e-6, at + edge + WIDER + 1e-6)]
        listed = members(dag, value) if kind == SURFACE else []
        assert set(inner) <= set(listed) <= set(outer)
        assert listed == sorted(set(listed))


@settings(max_examples=30, deadline=None)
@given(triangles(), st.integers(0, 2**32 - 1))
def test_empty_leaf_distance_is_a_lower_bound(corners, seed):
    dag = build_dag(corners, 16, 2)
    empty = [(at, edge, value) for kind, at, edge, value, _ in leaves(dag) if kind == EMPTY]
    surface = [(at, edge) for kind, at, edge, _, _ in leaves(dag) if kind == SURFACE]
    begin, size = np.array([at for at, _ in surface]), np.array([edge for _, edge in surface])[:, None]
    corner, edge = np.array([at for at, _, _ in empty]), np.array([e for _, e, _ in empty])[:, None]
    reported = np.array([value for _, _, value in empty]) / 16
    rng = np.random.default_rng(seed)
    bvh = TriangleBVH(corners)
    for spread in (rng.random((len(empty), 3)), rng.integers(0, 2, (len(empty), 3))):  # inside, and at the corners
        true, _ = bvh.closest(corner + edge * spread)
        assert (reported <= true + 1e-9).all()
    # It is the distance of the cubes, rounded down to a sixteenth of a voxel, and no less.
    for k in rng.integers(len(empty), size=40):
        gap = np.maximum(np.maximum(corner[k] - begin - size, begin - corner[k] - edge[k]), 0)
        assert reported[k] == np.floor(16 * np.sqrt((gap**2).sum(axis=1).min()) + 1e-9) / 16


@pytest.mark.parametrize("resolution", [16, 64, 128, 512, 1024, 2048])
def test_the_runtime_cells_hold_the_lists_of_the_dag(resolution):
    scene = compile_mesh(generate_scene("apartment", 1), CompileConfig(resolution=resolution, max_leaf_triangles=4))
    tree, dag = scene.tree, scene.dag
    rng = np.random.default_rng(resolution)
    flat = (scene.triangles.reshape(-1, 3) - scene.bounds[0]) / scene.voxel_size
    points = np.concatenate([flat[rng.integers(len(flat), size=300)] + rng.normal(size=(300, 3)), flat[:100]])
    for place in points.clip(0, resolution - 1e-6):
        size = resolution / tree.cells
        cell = (place // size).astype(int)
        record = tree.grid[(cell[0] * tree.cells + cell[1]) * tree.cells + cell[2]]
        start, count = tree.records[record] if record >= 0 else (0, 0)
        corner = cell * size
        for _ in range(2):
            if count >= 0:
                break
            size /= 4
            sub = ((place - corner) // size).astype(int).clip(0, 3)
            corner = corner + sub * size
            start, count = tree.records[start + (sub[0] * 4 + sub[1]) * 4 + sub[2]]
        kind, value = leaf_at(dag, place)
        assert tree.items[start : start + count].tolist() == (members(dag, value) if kind == SURFACE else [])


def test_long_triangle_lists_are_split_above_the_finest_level():
    scene = compile_mesh(generate_scene("atrium", 0), CompileConfig(resolution=256, max_leaf_triangles=8))
    coarse, deepest = levels_of(256)
    lengths = {level: 0 for level in range(coarse, deepest + 1)}
    for kind, _, _, value, level in leaves(scene.dag):
        if kind == SURFACE:
            assert coarse <= level <= deepest
            lengths[level] = max(lengths[level], len(members(scene.dag, value)))
    assert max(length for level, length in lengths.items() if level < deepest) <= 2 * 8


def test_coincident_sheets_are_not_split_without_gain():
    sheet = np.array([[[1, 1, 8.3], [15, 1, 8.3], [1, 15, 8.3]]] * 200)
    dag = build_dag(sheet, 16, 16)
    assert dag.unfolded.items < 3 * 200 * 16 * 16


def test_the_finest_leaf_is_half_a_voxel_or_a_1024th_of_the_cube():
    assert levels_of(16) == (4, 5)
    assert levels_of(64) == (6, 7)
    assert levels_of(256) == (6, 9)
    assert levels_of(512) == (6, 10)
    assert levels_of(2048) == (6, 10)


def test_repeated_objects_and_plain_walls_are_stored_once():
    boxes = [box_triangles((x, 0, z), (x + 0.5, 0.5, z + 0.5)) for x in range(0, 12, 2) for z in range(0, 12, 2)]
    room = box_triangles((-1, 0, -1), (13, 3, 13))
    dag = compile_mesh(mesh_of(np.concatenate([room, *boxes])), CompileConfig(resolution=512)).dag
    assert dag.stored.surface < dag.unfolded.surface / 10
    assert dag.stored.nodes < dag.unfolded.nodes / 5
    # Nothing is stored twice.
    assert len(np.unique(dag.children, axis=0)) == len(dag.children)
    lists = {tuple(members(dag, k)) for k in range(len(dag.bounds) - 1)}
    assert len(lists) == len(dag.bounds) - 1


def test_unfolded_size_matches_a_tree_walk():
    dag = compile_mesh(generate_scene("maze", 0), CompileConfig(resolution=32)).dag
    found = list(leaves(dag))
    surface = [value for kind, _, _, value, _ in found if kind == SURFACE]
    size = dag.unfolded
    # Every inner node has eight children.
    assert size.nodes == len(found) + (len(found) - 1) / 7
    assert size.surface == len(surface)
    assert size.items == sum(len(members(dag, value)) for value in surface)


SCRIPT = """
import sys
from tests.scenes.gmdag.test_dag import write_both
write_both(sys.argv[1])
"""


def write_both(folder: str) -> list[bytes]:
    """Write a decimated scene in both versions, and return the bytes."""
    scene = compile_mesh(generate_scene("apartment", 3), CompileConfig(resolution=64, decimate=0.25))
    return [scene.save(Path(folder) / f"{version}.gmdag", version).read_bytes() for version in (2, 1)]


@pytest.mark.slow
def test_another_process_with_other_threads_writes_the_same_bytes(tmp_path):
    mine = write_both(str(tmp_path / "mine"))
    environment = os.environ | {"NUMBA_NUM_THREADS": "2", "PYTHONHASHSEED": "5"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "other")]
    subprocess.run(command, env=environment, cwd=Path(__file__).resolve().parents[3], check=True)
    assert [(tmp_path / "other" / f"{version}.gmdag").read_bytes() for version in (2, 1)] == mine
    assert load_gmdag(tmp_path / "other" / "2.gmdag").decimation is not None
