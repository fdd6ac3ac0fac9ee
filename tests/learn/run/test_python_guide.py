"""The guide's programs in Python run: the environment steps, and a custom reward is learned."""

import re
from pathlib import Path

import pytest

from navi_core.models import Registry, load_checkpoint
from navi_core.record import navi_home

GUIDE = (Path(__file__).parents[3] / "docs/how-to/python.md").read_text()
STEPS, GYMNASIUM, REWARD, *_ = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def test_the_environment_of_the_guide_steps():
    namespace = {}
    exec(STEPS, namespace)
    assert namespace["step"].obs.shape == namespace["obs"].shape == (64, 3, 64, 16)


def test_the_gymnasium_environments_of_the_guide_are_made():
    pytest.importorskip("gymnasium")
    namespace = {}
    exec(GYMNASIUM.replace('scenes=["house.glb"]', 'family="apartment"').replace("range(12)", "range(1)"), namespace)
    assert namespace["env"].reset(seed=0)[0].shape == (3, 64, 16) and namespace["envs"].reset(seed=0)[0].shape[0] == 64


def test_custom_reward_trains_and_registers_a_version():
    small = '{"total_steps": 64, "actors": 2, "ppo": {"rollout": 32, "bptt": 16, "minibatch": 16, "epochs": 1}}'
    program = REWARD.replace('{"total_steps": 300_000}', small).replace("range(12)", "range(1)")
    namespace = {}
    exec(program, namespace)
    metrics = namespace["result"].metrics
    paid = sum(metrics[name] for name in ("view_gain", "collision"))
    assert metrics["reward_mean"] < paid
    version = Registry(navi_home() / "models").resolve(namespace["version"])
    assert load_checkpoint(version.path).weights_hash == load_checkpoint(namespace["result"].checkpoint).weights_hash
