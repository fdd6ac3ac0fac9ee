"""Corpus-wide semantic ids: one name has one id in every scene of a field, whatever its local ids are."""

from __future__ import annotations

import numpy as np
import torch

from navi_core.config import CompileConfig
from navi_core.scenes import compile_mesh, mesh_from_arrays
from navi_core.world import Field
from tests.conftest import box_triangles


def room(name: str, names: dict[int, str], ids: list[int]):
    """A closed 4 × 2 × 4 m box; `ids` are those of its x−, x+, y−, y+, z−, z+ sides."""
    triangles = box_triangles((-2, 0, -2), (2, 2, 2))
    middle = triangles.mean(axis=1)
    low, high = triangles.reshape(-1, 3).min(0), triangles.reshape(-1, 3).max(0)
    side = np.array([next(2 * a + int(m[a] == high[a]) for a in range(3) if m[a] in (low[a], high[a])) for m in middle])
    faces = np.arange(36).reshape(-1, 3)
    mesh = mesh_from_arrays(name, triangles.reshape(-1, 3), faces, np.array(ids)[side], names)
    return compile_mesh(mesh, CompileConfig(resolution=64))


FIRST = room("first", {1: "surface", 2: "wall", 3: "zebra"}, [2, 2, 3, 1, 2, 2])
SECOND = room("second", {1: "surface", 2: "carpet", 3: "wall"}, [3, 3, 2, 1, 3, 3])
AHEAD, DOWN, UP = [0.0, 0.0, -1.0], [0.0, -1.0, 0.0], [0.0, 1.0, 0.0]


def look(field: Field) -> list[list[int]]:
    rows = torch.tensor([[0.1, 1.0, 0.2]] * 2)
    return field.cast_rays(rows, torch.tensor([AHEAD, DOWN, UP]), torch.arange(2), 100.0).semantic.tolist()


def test_ids_are_one_based_sorted_by_name_and_shared_by_scenes() -> None:
    field = Field([FIRST, SECOND])
    assert field.vocabulary == {"surface": 1, "carpet": 2, "wall": 3, "zebra": 4}
    assert field.semantic_names == {1: "surface", 2: "carpet", 3: "wall", 4: "zebra"}
    assert look(field) == [[3, 4, 1], [3, 2, 1]]
    turned = Field([SECOND, FIRST])
    assert turned.vocabulary == field.vocabulary
    assert look(turned) == look(field)[::-1]


def test_names_outside_the_vocabulary_are_unknown_surfaces() -> None:
    field = Field([FIRST, SECOND], vocabulary={"surface": 1, "wall": 7})
    assert look(field) == [[7, 1, 1], [7, 1, 1]]
