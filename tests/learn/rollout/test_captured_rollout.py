"""A rollout on a CUDA device, here an emulated one: the recorded step of the environment changes nothing but time."""

from __future__ import annotations

import copy
from unittest.mock import patch

import torch

from navi_core.learn import Collector
from navi_core.policy import RewardShaper, build_policy
from navi_core.world import CapturedStep, Field, NavigationEnv
from tests.learn.builders import filled, small_config
from tests.world.emulated_cuda import DEVICE, DeviceTensor, emulated_cuda

FILLED = (
    "actions",
    "log_probs",
    "values",
    "rewards",
    "truncated",
    "bootstrap_values",
    "episode_return",
    "aux",
    "reset",
)


def seen_in(collector: Collector) -> list[torch.Tensor]:
    rollout = filled(collector)
    assert isinstance(rollout.rewards, DeviceTensor)
    return [getattr(rollout, name).cpu() for name in FILLED] + [
        rollout.observations.by_step().cpu(),
        collector.obs.cpu(),
    ]


def test_captured_rollout_equals_eager_rollout(apartments) -> None:
    made = []
    # The compiler needs a real device; the policy's call is carried out as written in both runs.
    with (
        emulated_cuda(),
        patch.object(torch, "compile", lambda function, **_: function),
        patch.object(torch.compiler, "cudagraph_mark_step_begin", lambda: None),
    ):
        field = Field(apartments, device="cuda")
        for execution in ("eager", "graph"):
            config = small_config(
                rows=2,
                execution=execution,
                device="cuda",
                env={"max_steps": 3, "episodes_per_scene": 2},
                ppo={"rollout": 4, "bptt": 2},
            )
            policy = build_policy(config.policy).to(DEVICE)
            shaper = RewardShaper(config.shaper, 2, config.policy.width, 0, DEVICE)
            collector = Collector(NavigationEnv(field, 2, config.env), policy, shaper, config, device=DEVICE)
            assert isinstance(collector._fly, CapturedStep) == (execution == "graph")
            before = copy.deepcopy(collector.state_dict())
            made.append(seen_in(collector))
        # Taken back after the graph was recorded, it flies the same rollout.
        collector.load_state_dict(before)
        made.append(seen_in(collector))
    wanted, recorded, again = made
    assert bool(wanted[FILLED.index("truncated")].any())
    for found in (recorded, again):
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
