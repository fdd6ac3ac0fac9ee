"""Small real policies and checkpoints."""

import pytest
import torch

from navi_core.config import EnvConfig, PolicyConfig, TrainConfig
from navi_core.models import Checkpoint, save_checkpoint
from navi_core.policy import build_policy

POLICY = PolicyConfig(encoder="ring_cnn", core="gru", azimuth_bins=16, elevation_bins=4, width=16)
CONFIG = TrainConfig(policy=POLICY, env=EnvConfig(azimuth_bins=16, elevation_bins=4))


@pytest.fixture
def config():
    return CONFIG


@pytest.fixture
def make_checkpoint(tmp_path):
    """Return a function that writes a checkpoint of freshly seeded weights."""

    def make(name="a.pt", *, seed=0, steps=1, **changes):
        policy = build_policy(CONFIG.policy, seed=seed)
        optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
        for _ in range(steps):
            obs, aux = torch.full((2, 3, 16, 4), 0.5), torch.zeros(2, 3)
            policy.value(obs, aux, policy.initial_state(2)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        given = {
            "policy": policy,
            "optimizer": optimizer,
            "config": CONFIG,
            "step_id": 1000,
            "episode_count": 7,
            "reward_ema": 0.5,
            "run_id": "ppo-demo-0123",
            "wall_time_hours": 0.25,
        }
        return save_checkpoint(tmp_path / name, Checkpoint.of(**(given | changes)))

    return make
