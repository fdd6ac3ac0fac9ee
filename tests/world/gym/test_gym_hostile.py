"""The gymnasium adapter refuses wrong arguments, actions and orders of calls by name."""

from __future__ import annotations

import numpy as np
import pytest

from navi_core.config import CompileConfig
from navi_core.errors import NaviError
from navi_core.scenes import compile_mesh
from tests.conftest import box_triangles, mesh_of

adapter = pytest.importorskip("navi_core.world.gym_adapter")
SMALL = {"azimuth_bins": 16, "elevation_bins": 8, "max_steps": 5}


@pytest.fixture(scope="module")
def scene():
    return compile_mesh(mesh_of(box_triangles((-2, 0, -2), (2, 2.5, 2))), CompileConfig(resolution=32))


@pytest.mark.parametrize(
    "arguments",
    [
        *({"scenes": value} for value in (None, 5, [None], "nope.glb")),
        *({"family": "rooms", "seeds": value} for value in (3, (), [-1])),
        {"family": "castle"},
        {"corpus": 5},
        {"config": 5},
        {"config": {"azimut_bins": 16}},
        {"render_mode": "human"},
        *({"num_envs": value} for value in (0, -1, 1.5, "a", None, 10**12)),
        {"threads": -2},
        {"seed": "a"},
    ],
)
def test_wrong_arguments_are_refused(arguments, scene) -> None:
    given = {"scenes": scene, "config": SMALL} if not {"scenes", "family", "corpus"} & set(arguments) else {}
    with pytest.raises(NaviError):
        adapter.ExploreVectorEnv(**given | arguments)


def test_refused_actions_leave_state_unchanged(scene) -> None:
    one, two = (adapter.ExploreVectorEnv(2, scenes=scene, config=SMALL) for _ in range(2))
    with pytest.raises(NaviError, match="reset"):
        one.step(np.zeros((2, 4)))
    for env in (one, two):
        env.reset(seed=3)
    for row in (None, "fwd", {}, np.zeros(3), 0.0, [0, 0, 0, None], np.full(4, np.nan), np.zeros(4) + 1j):
        with pytest.raises(NaviError):
            one.step([row, row])
    with pytest.raises(NaviError):
        one.step([[0, 0, 0, 0], [0, 0]])
    with pytest.raises(NaviError):
        one.reset(options={"fast": True})
    assert np.array_equal(one.step(np.zeros((2, 4)))[0], two.step(np.zeros((2, 4)))[0])
    for _ in range(2):
        one.close()
