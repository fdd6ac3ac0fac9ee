"""Learning benchmarks: every task has its settings, and DPO is evaluated before and after."""

import math

import pytest

from navi_core.bench.cartpole import cartpole_cases, run_cartpole, run_grpo, run_solve
from navi_core.bench.learning.dpo import dpo_config, run_dpo
from navi_core.bench.task_runs import PPO_TARGETS, task_config
from navi_core.config import EvalConfig
from navi_core.errors import ConfigError


def test_every_task_of_ppo_has_a_target_and_stays_within_a_million_decisions():
    for task in PPO_TARGETS:
        config = task_config("ppo", task)
        batch = config.actors * config.ppo.rollout
        assert batch * math.ceil(config.total_steps / batch) <= 1_000_000
    assert task_config("ppo", "acrobot", 0, {"ppo": {"gamma": 0.9}}).ppo.gamma == 0.9
    with pytest.raises(ConfigError, match="rollout"):
        task_config("ppo", "cart_pole", 0, {"ppo": {"rolout": 3}})


@pytest.mark.slow
def test_cart_pole_measures_the_run_loop_in_a_process_of_its_own():
    case = cartpole_cases()[0] | {"width": 16, "rows": 8, "rollout": 16, "minibatch": 64, "samples": 512}
    (row,) = run_cartpole([case], 1)
    assert (row["batch"], row["epochs"], row["processes"]) == (128, 4, 1) and row["samples_per_cpu_second"] > 0
    changes = {"total_steps": 4096, "actors": 16, "ppo": {"rollout": 16, "epochs": 1}}
    (solved,) = run_solve({"navi": 1}, [0], "cart_pole", changes, 5.0)
    assert (solved["task"], solved["steps"], solved["batch"], solved["minibatch"]) == ("cart_pole", 4096, 256, 256)
    assert 0 < solved["solved_at"] <= 4096 and solved["final_return"] > 5


def test_grpo_learns_by_the_run_loop():
    changes = {"total_steps": 1024, "actors": 8, "grpo": {"rollout": 32, "horizon": 16, "group_size": 8}}
    (row,) = run_grpo("cart_pole", [1], changes, 5.0)
    assert (row["trainer"], row["seed"], row["steps"], row["epochs"]) == ("grpo", 1, 1024, 4) and row[
        "final_return"
    ] > 5


def test_dpo_bench_evaluates_before_and_after_on_unseen_scenes(apartments):
    small = {"actors": 2, "dpo": {"rollout": 8, "bptt": 8}, "policy": {"azimuth_bins": 16, "elevation_bins": 4},
             "env": {"azimuth_bins": 16, "elevation_bins": 4}}  # fmt: skip
    protocol = EvalConfig(starts=2, max_steps=6, azimuth_bins=16, elevation_bins=4)
    printed = []
    (row,) = run_dpo(
        apartments[:1], apartments[1:2], [3],
        count=6, steps=8, updates=2, changes=small, protocol=protocol, progress=printed.append,
    )  # fmt: skip
    assert row["seed"] == 3 and row["pairs"] == 6 and row["updates"] == 2 and 0 <= row["held_out"] <= 1
    assert row["gain"] == pytest.approx(row["after"] - row["before"]) and row["low"] <= row["gain"] <= row["high"]
    assert "earned more" in printed[0] and "update 2" in printed[2]
    assert dpo_config(3, 5, None).dpo.ref_sync_every_updates == 0
