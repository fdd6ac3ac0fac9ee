"""The guide's programs in Python do what they say: the environment steps, and a reward of one's own is learned."""

import re
from pathlib import Path

import pytest

from navi_core.models import Registry, load_checkpoint
from navi_core.record import navi_home

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "PYTHON.md").read_text()
STEPS, GYMNASIUM, REWARD, *_ = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def test_the_environment_of_the_guide_steps():
    said = {}
    exec(STEPS, said)
    assert said["step"].obs.shape == said["obs"].shape == (64, 3, 64, 16)


def test_the_gymnasium_environments_of_the_guide_are_made():
    pytest.importorskip("gymnasium")
    said = {}
    exec(GYMNASIUM.replace('scenes=["house.glb"]', 'family="apartment"').replace("range(12)", "range(1)"), said)
    assert said["env"].reset(seed=0)[0].shape == (3, 64, 16) and said["envs"].reset(seed=0)[0].shape[0] == 64


def test_a_reward_of_ones_own_is_learned_and_becomes_a_version():
    small = '{"total_steps": 64, "actors": 2, "ppo": {"rollout": 32, "bptt": 16, "minibatch": 16, "epochs": 1}}'
    program = REWARD.replace('{"total_steps": 300_000}', small).replace("range(12)", "range(1)")
    said = {}
    exec(program, said)
    metrics = said["result"].metrics
    paid = sum(metrics[name] for name in ("view_gain", "collision"))
    assert metrics["reward_mean"] < paid
    version = Registry(navi_home() / "models").resolve(said["version"])
    assert load_checkpoint(version.path).weights_hash == load_checkpoint(said["result"].checkpoint).weights_hash
