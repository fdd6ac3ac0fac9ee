"""Benchmarks of what is learned: every task has its settings, and DPO is flown before and after."""

import math

import pytest

from navi_core.bench.learning.dpo import dpo_config, run_dpo
from navi_core.bench.tasks import PPO_TARGETS, ppo_settings, task_name
from navi_core.config import EvalConfig
from navi_core.errors import ConfigError


def test_every_task_of_ppo_has_a_target_and_stays_within_a_million_decisions():
    for task in PPO_TARGETS:
        settings = ppo_settings(task)
        assert settings["task"] == task_name(task)
        steps = settings.get("total_steps", 200_000)
        batch = settings.get("rows", 64) * settings.get("rollout", 32)
        assert batch * math.ceil(steps / batch) <= 1_000_000
    assert ppo_settings("acrobot", {"gamma": 0.9})["gamma"] == 0.9
    with pytest.raises(ConfigError, match="rollout"):
        ppo_settings("cart_pole", {"rolout": 3})


def test_dpo_is_flown_before_and_after_on_scenes_that_it_has_not_seen(apartments):
    small = {"actors": 2, "dpo": {"rollout": 8, "bptt": 8}, "policy": {"azimuth_bins": 16, "elevation_bins": 4},
             "env": {"azimuth_bins": 16, "elevation_bins": 4}}  # fmt: skip
    protocol = EvalConfig(starts=2, max_steps=6, azimuth_bins=16, elevation_bins=4)
    said = []
    (row,) = run_dpo(
        apartments[:1], apartments[1:2], [3],
        count=6, steps=8, updates=2, changes=small, protocol=protocol, progress=said.append,
    )  # fmt: skip
    assert row.seed == 3 and row.pairs == 6 and row.updates == 2 and 0 <= row.held_out <= 1
    assert row.gain == pytest.approx(row.after - row.before) and row.low <= row.gain <= row.high
    assert "earned more" in said[0] and "update 2" in said[2]
    assert dpo_config(3, 5, None).dpo.ref_sync_every_updates == 0
