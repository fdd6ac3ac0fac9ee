"""Demonstrations of a teacher with a memory."""

from __future__ import annotations

import numpy as np
import pytest

from navi_core.demos import index_folder, load_dataset, save_demonstration
from tests.demos.conftest import make_demo


def teach(demo, seed):
    """Give the turn by a sign at the start of an episode, and the speed by each view."""
    rng = np.random.default_rng(seed)
    obs, actions = demo.observations, np.zeros_like(demo.actions)
    obs[:, 0] = 0.4
    for begin, stop in demo.episodes():
        turn = rng.choice([-0.8, 0.8])
        obs[begin, 0] += 0.2 * turn
        actions[begin:stop, 3] = turn
    near = rng.uniform(-0.1, 0.1, len(obs)).astype(np.float32)
    obs[:, 0, :4] += near[:, None, None]
    actions[:, 0] = near * 8
    object.__setattr__(demo, "actions", actions)
    return demo


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Five scenes of three flights of 11, 20 and 9 decisions."""
    path = tmp_path_factory.mktemp("demos")
    demos = [teach(make_demo(40, seed=n, scene=f"room{n}", starts=(0, 11, 31)), n) for n in range(5)]
    for number, demo in enumerate(demos):
        save_demonstration(path / f"{number}.npz", demo)
    index_folder(path, [f"{n}.npz" for n in range(len(demos))])
    return path


@pytest.fixture(scope="module")
def data(folder):
    return load_dataset([folder])
