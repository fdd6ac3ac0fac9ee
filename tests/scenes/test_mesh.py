"""Meshes: what can be flown is accepted, everything else refused with the fault named."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from navi_core.config import CompileConfig
from navi_core.errors import MeshError, SceneError
from navi_core.scenes import (
    Mesh,
    build_vocabulary,
    check_mesh,
    compile_mesh,
    merge_vocabularies,
    mesh_from_arrays,
)
from tests.conftest import box_triangles, mesh_of

TRIANGLE = [[0, 0, 0], [1, 0, 0], [0, 0, 1]]


def broken(**changes) -> Mesh:
    parts = {"vertices": TRIANGLE, "faces": [[0, 1, 2]], "face_semantic": None, "semantic_names": None} | changes
    return mesh_from_arrays("broken", **parts)


BAD = {
    "no faces": (broken(faces=[]), "empty"),
    "no vertices": (broken(vertices=[], faces=[]), "empty"),
    "NaN vertex": (broken(vertices=[[0, 0, 0], [1, np.nan, 0], [0, 0, np.inf]]), r"2 of 3 .*vertex 1 = \(1, nan, 0\)"),
    "index too large": (broken(faces=[[0, 1, 2], [0, 1, 3]]), "face 1 refers to vertex 3"),
    "index negative": (broken(faces=[[0, 1, -1]]), "face 0 refers to vertex -1"),
    "zero area only": (broken(faces=[[0, 1, 1], [2, 2, 2]]), "all 2 faces have zero area"),
    "collinear only": (broken(vertices=[[0, 0, 0], [1, 1, 1], [3, 3, 3]]), "zero area"),
    "semantic 0": (broken(face_semantic=[0]), "semantic ids run from 0"),
    "semantic beyond 16 bits": (broken(face_semantic=[70000]), "allowed are 1 to 65535"),
    "semantic without a name": (broken(face_semantic=[2]), "semantic id 2 has no name"),
    "too few semantics": (broken(face_semantic=[]), "one per face"),
    "millimetres": (broken(vertices=np.array(TRIANGLE) * 9000.0), r"more than 5000 m.*unit-scale 0\.001"),
    "kilometres": (broken(vertices=np.array(TRIANGLE) * 0.01), r"less than 0\.05 m.*unit_scale"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_unusable_mesh_is_refused_with_its_fault(name):
    mesh, reason = BAD[name]
    with pytest.raises(MeshError, match=reason):
        check_mesh(mesh, "file.glb")
    with pytest.raises(MeshError, match=r"file\.glb"):
        check_mesh(mesh, "file.glb")
    with pytest.raises(SceneError, match="broken"):
        compile_mesh(mesh, CompileConfig(resolution=16))


def test_wrong_shapes_are_refused():
    mesh = Mesh(np.zeros((3, 2)), np.zeros((1, 3), np.int32), np.ones(1, np.int32), {1: "surface"}, "flat", "")
    with pytest.raises(MeshError, match=r"shapes \(V, 3\)"):
        check_mesh(mesh)


def test_zero_area_faces_are_dropped_and_counted_once(caplog):
    mesh = broken(faces=[[0, 1, 2], [1, 1, 2], [0, 0, 0]])
    with caplog.at_level(logging.WARNING):
        kept = check_mesh(mesh)
    assert kept.faces.tolist() == [[0, 1, 2]]
    assert len(kept.face_semantic) == 1
    assert [r.message for r in caplog.records] == ["broken: dropped 2 of 3 faces of zero area"]


def test_thin_slivers_are_kept():
    mesh = broken(vertices=[[0, 0, 0], [10, 0, 0], [5, 1e-6, 0]])
    assert len(check_mesh(mesh).faces) == 1


def test_scene_on_its_side_is_warned_of(caplog):
    box = mesh_of(box_triangles((0, 0, 0), (12, 9, 2.6)), "side")
    with caplog.at_level(logging.WARNING):
        check_mesh(box)
    assert "--up-axis z" in caplog.text


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=8), max_size=12))
def test_vocabularies_are_one_based_sorted_and_independent_of_order(names):
    vocabulary = build_vocabulary(names)
    assert vocabulary[1] == "surface"
    assert sorted(vocabulary) == list(range(1, len(vocabulary) + 1))
    assert [vocabulary[i] for i in range(2, len(vocabulary) + 1)] == sorted(set(names) - {"surface"})
    assert build_vocabulary(reversed(names)) == vocabulary


def test_corpus_ids_follow_names_not_local_ids():
    first, second = build_vocabulary(["wall", "chair"]), build_vocabulary(["table", "wall"])
    corpus = merge_vocabularies([first, second])
    assert corpus == {1: "surface", 2: "chair", 3: "table", 4: "wall"}


def test_too_many_names_for_16_bits_are_refused():
    with pytest.raises(SceneError, match="16 bits"):
        build_vocabulary(str(i) for i in range(65_536))


def test_unused_nan_vertex_is_ignored():
    mesh = broken(vertices=[[0, 0, 0], [10, 0, 0], [5, 0, 5], [np.nan, 0, 0]])
    assert len(check_mesh(mesh).faces) == 1
    with pytest.raises(MeshError, match="1 of 4 vertices are NaN"):
        check_mesh(replace(mesh, faces=np.array([[0, 1, 3]], np.int32)))


@pytest.mark.parametrize(
    ("scale", "doubt"), [(1, ""), (100, "is its unit the centimetre"), (400, "the millimetre or centimetre")]
)
def test_room_in_another_unit_is_warned_of(caplog, scale, doubt):
    check_mesh(mesh_of(scale * box_triangles((0, 0, 0), (4, 2.5, 3)), "room"))
    assert doubt in caplog.text
    assert bool(caplog.text) == bool(doubt)


def test_stray_triangles_far_from_a_scan_are_reported(caplog):
    rng = np.random.default_rng(0)
    scan = rng.uniform((0, 0, 0), (6, 2.5, 5), (4000, 1, 3)) + rng.normal(size=(4000, 3, 3)) * 0.05
    check_mesh(mesh_of(scan, "scan"))
    assert caplog.text == ""
    scan[7] += 300.0
    check_mesh(mesh_of(scan, "scan"))
    reported = "without the few triangles furthest out it would measure 6"
    assert reported in caplog.text
    assert "centimetre" not in caplog.text
    scan[7] += 1e6
    with pytest.raises(MeshError, match=reported):
        check_mesh(mesh_of(scan, "scan"))


def test_few_large_triangles_are_not_reported_as_strays(caplog):
    rng = np.random.default_rng(0)
    statue = rng.uniform((4, 0, 4), (5, 1.5, 5), (20_000, 1, 3)) + rng.normal(size=(20_000, 3, 3)) * 0.02
    check_mesh(mesh_of(np.concatenate([box_triangles((0, 0, 0), (9, 3, 9)), statue]), "room"))
    assert caplog.text == ""
