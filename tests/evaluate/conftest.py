"""Analytic rooms: closed boxes of known floor, compiled once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig, EvalConfig
from navi_core.evaluate import EvalResult
from navi_core.evaluate.result import AVERAGED, summarise
from navi_core.pilots import Pilot
from navi_core.scenes import Scene, compile_mesh
from tests.conftest import box_triangles, mesh_of


def boxes_scene(name: str, *boxes: tuple[tuple[float, float, float], tuple[float, float, float]]) -> Scene:
    """Compile a scene of axis-aligned boxes, each given by its minimum and maximum corner."""
    triangles = np.concatenate([box_triangles(low, high) for low, high in boxes])
    return compile_mesh(mesh_of(triangles, name), CompileConfig(resolution=64))


@pytest.fixture(scope="session")
def box_room() -> Scene:
    """5 × 2.4 × 4 m, empty: reachable floor 4.6 × 3.6 m with 0.2 m clearance."""
    return boxes_scene("box", ((0, 0, 0), (5, 2.4, 4)))


@pytest.fixture(scope="session")
def corridor() -> Scene:
    """20 × 2.4 × 2 m along x."""
    return boxes_scene("corridor", ((0, 0, 0), (20, 2.4, 2)))


@pytest.fixture(scope="session")
def halls() -> list[Scene]:
    """Four empty rooms, 5 to 6.5 m × 4 m: an interval of few scenes needs some to say anything."""
    return [boxes_scene(f"hall{n}", ((0, 0, 0), (5.0 + 0.5 * n, 2.4, 4))) for n in range(4)]


@pytest.fixture(scope="session")
def door_room() -> Scene:
    """8 × 2.4 × 4 m, parted at x = 4 by a wall 0.2 m thick with a door from z = 1.5 to z = 2.5."""
    return boxes_scene(
        "door",
        ((0, 0, 0), (8, 2.4, 4)),
        ((3.9, 0, 0), (4.1, 2.4, 1.5)),
        ((3.9, 0, 2.5), (4.1, 2.4, 4)),
    )


def made_result(subject, coverage, collisions=None, *, scenes=("a", "b", "c"), weights=None, **changes):
    """A result with the given coverage, and collisions per minute, by scene and start."""
    episodes = []
    for index, scene in enumerate(scenes):
        for start, value in enumerate(coverage[index]):
            row = dict.fromkeys(AVERAGED, 1.0) | {
                "scene": scene,
                "scene_hash": f"hash-{scene}",
                "start": start,
                "start_x": float(start),
                "start_y": 1.0,
                "start_z": 2.0,
                "start_yaw": 0.5,
                "max_steps": 200,
                "decision_hz": 10.0,
                "view_radius": 3.2,
                "floor_cell": 0.1,
                "c_vis_auc": value,
                "collisions_per_minute": collisions[index][start] if collisions else 0.0,
                "collision_free": True,
                "c_vis_steps_to_90": None,
            }
            episodes.append(row | changes)
    config = EvalConfig()
    return EvalResult(subject, config, episodes, summarise(subject, config, episodes, {"weights_hash": weights}))


class ConstantPilot(Pilot):
    """Always the same command."""

    name = "constant"

    def __init__(self, *action: float) -> None:
        super().__init__()
        self._action = torch.tensor(action, dtype=torch.float32)

    def _decide(self, obs: torch.Tensor) -> torch.Tensor:
        return self._action.expand(obs.shape[0], 4).clone()


@pytest.fixture
def constant():
    """Build a pilot that always answers with one command: forward, vertical, lateral, yaw."""
    return ConstantPilot
