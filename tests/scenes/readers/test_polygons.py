"""Polygons of OBJ and PLY files cover what their outline encloses, and nothing else."""

from __future__ import annotations

import time

import numpy as np
import pytest

from navi_core.errors import MeshError
from navi_core.scenes import read_mesh
from navi_core.scenes.readers.part import triangulate
from tests.scenes.mesh_files import write_ply

DOORWAY = [[0, 0, 0], [6, 0, 0], [6, 4, 0], [0, 4, 0], [0, 3, 0], [5, 3, 0], [5, 1, 0], [0, 1, 0]]
"""A wall of 6 × 4 m that begins at x = 0 and has an opening of 5 × 2 m there: an outline that turns inwards."""
WINDOW = [[0, 0, 0], [6, 0, 0], [6, 4, 0], [0, 4, 0], [0, 0, 0], [2, 1, 0], [2, 3, 0], [4, 3, 0], [4, 1, 0], [2, 1, 0]]
"""A wall of 6 × 4 m with a window of 2 × 2 m, joined to the outline by a seam."""
TOUCHED = [
    [4, 3],
    [4, 4],
    [6, 4],
    [6, 6],
    [1, 6],
    [1, 5],
    [2, 5],
    [3, 5],
    [4, 5],
    [4, 4],
    [3, 4],
    [3, 5],
    [2, 5],
    [2, 3],
]
"""A floor with a hole of 1 × 1 m that a corner of the outline touches: it is narrowed to nothing there."""
DOUBLED = [[0, 0, 0], [4, 0, 0], [4, 0, 0], [1, 1, 0], [1, 1, 0], [0, 4, 0]]
"""The arrow with corners that are there twice, the one that turns inwards too."""
ARROW = [[0, 0, 0], [4, 0, 0], [1, 1, 0], [0, 4, 0]]


def area(points: np.ndarray, faces: np.ndarray) -> float:
    a, b, c = (points[faces[:, k]] for k in range(3))
    return float(np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2)


def enclosed(points: np.ndarray) -> float:
    """Return the area within an outline in one plane (Newell)."""
    around = points - points[0]
    return float(np.linalg.norm(np.cross(around, np.roll(around, -1, axis=0)).sum(axis=0)) / 2)


@pytest.mark.parametrize("suffix", [".obj", ".ply"])
def test_an_opening_in_a_wall_stays_open(tmp_path, suffix):
    path = tmp_path / f"wall{suffix}"
    if suffix == ".obj":
        lines = ["v " + " ".join(map(str, corner)) for corner in DOORWAY]
        path.write_text("\n".join([*lines, "f " + " ".join(map(str, range(1, 9)))]))
    else:
        write_ply(path, DOORWAY, [list(range(8))])
    mesh = read_mesh(path)
    assert len(mesh.faces) == 6
    assert area(mesh.vertices, mesh.faces) == pytest.approx(6 * 4 - 5 * 2)


@pytest.mark.parametrize(("outline", "inside"), [(DOORWAY, 14), (WINDOW, 20), (ARROW, 4), (DOUBLED, 4)])
def test_triangulated_area_is_independent_of_start_and_direction(outline, inside):
    points = np.array(outline, float) + 1000.0
    for first in range(len(points)):
        for ring in (np.roll(np.arange(len(points)), first), np.roll(np.arange(len(points)), first)[::-1]):
            faces, _ = triangulate(points, ring, np.array([len(ring)]))
            assert len(faces) == len(ring) - 2
            assert area(points, faces) == pytest.approx(inside)
            normal = np.cross(points[faces[:, 1]] - points[faces[:, 0]], points[faces[:, 2]] - points[faces[:, 0]])
            assert (np.sign(normal[:, 2]) * np.sign(normal[0, 2]) >= 0).all()


def test_any_outline_in_any_plane_is_covered_once():
    rng = np.random.default_rng(0)
    for _ in range(200):
        angle = 2 * np.pi * (np.arange(12) + rng.uniform(0, 0.9, 12)) / 12
        flat = rng.uniform(0.2, 3.0, 12)[:, None] * np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)
        points = flat @ np.linalg.qr(rng.normal(size=(3, 3)))[0].T
        faces, _ = triangulate(points, np.arange(12), np.array([12]))
        assert area(points, faces) == pytest.approx(enclosed(points))


def test_a_hole_that_touches_the_outline_stays_open():
    points = np.pad(np.array(TOUCHED, float), ((0, 0), (0, 1)))
    faces, _ = triangulate(points, np.arange(len(points)), np.array([len(points)]))
    assert area(points, faces) == pytest.approx(enclosed(points)) == 10


def test_an_arch_of_many_corners_stays_open():
    angle = np.linspace(0, np.pi, 300)
    arch = np.stack([0.5 * np.cos(angle), 0.5 * np.sin(angle), 0 * angle], axis=1)
    points = np.concatenate([arch, [[-5, 0, 0], [-5, 3, 0], [5, 3, 0], [5, 0, 0]]])
    faces, _ = triangulate(points, np.arange(len(points)), np.array([len(points)]))
    assert area(points, faces) == pytest.approx(enclosed(points)) == pytest.approx(30 - np.pi / 8, abs=1e-4)


def test_convex_polygons_are_fans_and_faces_keep_their_order():
    points = np.array([[0, 0, 0], [4, 0, 0], [4, 0, 4], [2, 0, 5], [0, 0, 4]], float)
    corners = np.array([0, 1, 2, 3, 4, 2, 1, 0, 1, 2, 3, 4])
    faces, origin = triangulate(points, corners, np.array([5, 3, 4]))
    assert faces.tolist() == [[0, 1, 2], [0, 2, 3], [0, 3, 4], [2, 1, 0], [1, 2, 3], [1, 3, 4]]
    assert origin.tolist() == [0, 0, 0, 1, 2, 2]


def test_degenerate_polygons_terminate_or_are_refused():
    crossing = np.array([[0, 0, 0], [1, 1, 0], [1, 0, 0], [0, 1, 0], [3, 3, 0]], float)
    assert len(triangulate(crossing, np.arange(5), np.array([5]))[0]) == 3
    assert len(triangulate(np.full((4, 3), np.nan), np.arange(4), np.array([4]))[0]) == 2
    with pytest.raises(MeshError, match="polygon of 5000 corners, more than 4096"):
        triangulate(crossing, np.zeros(5000, np.int64), np.array([5000]))


def test_self_crossing_outlines_take_bounded_time():
    points = np.random.default_rng(0).normal(size=(2048, 3))
    began = time.process_time()
    assert len(triangulate(points, np.tile(np.arange(2048), 40), np.full(40, 2048))[0]) == 40 * 2046
    assert time.process_time() - began < 8, "half a second; where ears are looked for to the end, half a minute"
