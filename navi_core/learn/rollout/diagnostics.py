"""What a rollout says of learning: its temporal differences, and whether latent neighbours have like targets.

Several processes say what one would say: moments are those of all rows, and neighbours are looked for among all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from navi_core.config import SmoothingConfig
from navi_core.learn.estimators.knn_kernel import compute_knn_kernel, local_structure
from navi_core.learn.estimators.noise import spread
from navi_core.learn.estimators.targets import n_step_returns
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.storage import Rollout

__all__ = ["rollout_signs"]

_SAMPLE = 256


@torch.no_grad()
def rollout_signs(
    policy: Any, rollout: Rollout, *, critic: bool, seed: int, update: int, workers: Workers = ALONE
) -> dict[str, float]:
    """Return td_mean, td_var and local_structure of a rollout.

    Neighbours are looked for among 256 single decisions, each drawn from a stretch of its own of all decisions in the
    order of time: decisions of one flight that follow each other are alike in what is seen and in what it is worth.

    Args:
        policy: The network; its encoder gives the latents.
        rollout: After its update; that of this process's rows.
        critic: Returns less values are the temporal differences; without one, undiscounted returns-to-go less their
            mean.
        seed: Of the run.
        update: Number of the update; other decisions are drawn for every one.
        workers: Processes of the run; all of them call, and all get the same.
    """
    if critic:
        target, foreseen = rollout.returns, rollout.values
    else:
        target = n_step_returns(rollout.rewards, rollout.terminated, rollout.truncated, gamma=1.0, n=rollout.steps)[0]
        foreseen = workers.mean(target.mean())
    deviation, mean = workers.std_mean((target - foreseen).double())
    return {
        "td_mean": float(mean),
        "td_var": float(deviation.square()),
        "local_structure": _structure(policy, rollout, target, seed, update, workers),
    }


def _structure(policy: Any, rollout: Rollout, target: Tensor, seed: int, update: int, workers: Workers) -> float:
    """Return the local structure of decisions that are drawn from all of the run, whichever processes they are of."""
    rows = rollout.rows * workers.size
    total = rollout.steps * rows
    if total < 2:
        return 1.0  # one decision has no neighbours
    # Numbered step · rows + row, so that one process and several draw the same ones.
    drawn = spread(seed, min(_SAMPLE, total), total, update)
    step, row = drawn // rows, drawn % rows - workers.rank * rollout.rows
    mine = ((row >= 0) & (row < rollout.rows)).nonzero().squeeze(1)
    step, row, place = (x.to(target.device) for x in (step[mine], row[mine], mine))
    goals = target.new_zeros(len(drawn)).index_copy_(0, place, target[step, row])
    latents = target.new_zeros(len(drawn), policy.config.width)
    if len(mine):
        latents.index_copy_(0, place, policy.encoder(rollout.observations.decisions(step, row)).float())
    # What others have seen is zero here, so that the sum is everybody's.
    workers.sum(goals, latents)
    return local_structure(compute_knn_kernel(latents, SmoothingConfig()), goals)
