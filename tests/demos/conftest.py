"""Small demonstrations made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from navi_core.demos import Demonstration, save_demonstration


def make_demo(steps=20, *, seed=0, scene="room", starts=(0,), bins=(16, 8), **settings):
    rng = np.random.default_rng(seed)
    obs = np.zeros((steps, 3, *bins), np.float32)
    obs[:, 0] = rng.random((steps, *bins)) * 0.4
    obs[:, 1] = rng.integers(1, 4, (steps, *bins))
    obs[:, 2] = rng.integers(0, 2, (steps, *bins))
    begins = np.zeros(steps, bool)
    begins[list(starts)] = True
    facts = {
        "scene": scene,
        "decision_hz": 10.0,
        "limits": (5.0, 2.0, 3.0, 3.0),
        "recording_date": "2026-01-01T00:00:00+00:00",
        "vocabulary": {"surface": 1, "door": 2, "wall": 3},
    }
    actions = rng.uniform(-1, 1, (steps, 4)).astype(np.float32)
    return Demonstration(obs, actions, begins, **(facts | settings))


@pytest.fixture
def recording(tmp_path) -> Path:
    """A valid file of 20 decisions in two episodes."""
    path = tmp_path / "flight.npz"
    save_demonstration(path, make_demo(starts=(0, 12)))
    return path
