"""Multiply-accumulate operations of a policy, counted while it runs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from navi_core.config.policy import OCCUPANCY_INPUTS
from navi_core.policy.navigation_policy import NavigationPolicy

__all__ = ["count_macs", "policy_macs"]


def count_macs(call: Callable[[], Any]) -> int:
    """Return the multiply-accumulate operations of the products and convolutions that `call` makes.

    Elementwise work is not counted. Attention runs in its plain form meanwhile, because fused kernels
    hide their products from the counter.

    Args:
        call: What to count; it runs once, without gradients.
    """
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call()
    out: int = counter.get_total_flops() // 2
    return out


def policy_macs(policy: NavigationPolicy) -> dict[str, int]:
    """Return the measured multiply-accumulates of one decision of one row by part, and their total.

    The parts are those of `parameter_counts`. The policy itself is not touched: a copy runs on the CPU.
    """
    policy = copy.deepcopy(policy).cpu()
    config = policy.config
    obs = torch.zeros(1, 3, config.azimuth_bins, config.elevation_bins)
    aux, reset = torch.zeros(1, policy.config.aux_inputs), torch.zeros(1, dtype=torch.bool)
    features, state = torch.zeros(1, config.width), policy.core.initial_state(1)
    counts = {
        "encoder": count_macs(lambda: policy.encoder(obs)),
        # Without the occupancy features, which go through `places`.
        "aux": 0 if policy.aux is None else count_macs(partial(policy.aux, torch.zeros(1, policy.aux.in_features))),
        "core": count_macs(lambda: policy.core.step(features, state, reset)),
        "heads": count_macs(lambda: policy.heads(features)),
    }
    if policy.places is not None:
        counts["places"] = count_macs(partial(policy.places, torch.zeros(1, OCCUPANCY_INPUTS)))
    if policy.critic_trunk is not None:
        counts["critic_trunk"] = count_macs(partial(policy.critic_trunk.step, obs, aux, state, reset))
    return counts | {"total": sum(counts.values())}
