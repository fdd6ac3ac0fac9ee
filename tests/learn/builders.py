"""Small real learners over the toy environments."""

from __future__ import annotations

import torch

from navi_core.config import TrainConfig, parse_config
from navi_core.learn.algorithms.ppo import PPOLearner
from navi_core.learn.rollout.collector import Collector
from navi_core.policy import RewardShaper, build_policy
from tests.learn.toy_environments import MixedEndingsEnv

CPU = torch.device("cpu")


def small_config(
    core: str = "gru",
    rows: int = 6,
    shaper: dict | None = None,
    ppo: dict | None = None,
    env: dict | None = None,
    **top,
):
    """A configuration of a 16x8 network."""
    sensor = {"azimuth_bins": 16, "elevation_bins": 8}
    data = {
        "actors": rows,
        "device": "cpu",
        "threads": 1,
        "env": sensor | (env or {}),
        "policy": sensor | {"encoder": "ring_cnn", "core": core, "aux": "full"},
        "ppo": {"rollout": 32, "bptt": 8, "minibatch": 6, "learning_rate": 1e-3} | (ppo or {}),
        "shaper": {"loop_coefficient": 0.0} | (shaper or {}),
    }
    return parse_config(TrainConfig, data | top)


def small_parts(config: TrainConfig, env=None, seed: int = 0) -> tuple[Collector, PPOLearner]:
    """A collector and a learner of one policy."""
    net = build_policy(config.policy, seed=seed)
    shaper = RewardShaper(config.shaper, config.actors, config.policy.width, seed)
    collector = Collector(env or MixedEndingsEnv(config.actors), net, shaper, config, device=CPU)
    return collector, PPOLearner(net, shaper, config, CPU)


def filled(collector: Collector):
    """A rollout, collected."""
    rollout = collector.new_rollout(collector.config.ppo.rollout, collector.config.ppo.bptt)
    collector.collect(rollout)
    return rollout


def weights(learner: PPOLearner) -> list[torch.Tensor]:
    """Copies of the policy's weights."""
    return [p.detach().clone() for p in learner.policy.parameters()]


def same_but_for_kinks(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Whether weights were made by the same steps, whose sums were rounded otherwise.

    A rounding may carry one unit over the kink of its ReLU, and Adam makes some of its steps of 1e-3 of that: a few
    weights may differ by more than a rounding.
    """
    apart = torch.cat([(a - b).abs().flatten() for a, b in zip(one, other, strict=True)])
    return bool((apart > 2e-5).float().mean() < 0.005 and apart.max() < 5e-3)
