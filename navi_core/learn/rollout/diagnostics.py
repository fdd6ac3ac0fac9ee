"""Rollout diagnostics: temporal-difference errors, local structure of the latents, first non-finite tensor.

The numbers do not depend on how many processes share a run: moments and neighbours are those of all rows.
"""

import math

import torch
from torch import Tensor

from navi_core.config import SmoothingConfig
from navi_core.errors import NonFiniteError
from navi_core.learn.estimators.drift_smoother import compute_knn_kernel, local_structure
from navi_core.learn.estimators.losses import n_step_returns
from navi_core.learn.estimators.noise import spread
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.storage import Rollout
from navi_core.policy import NavigationPolicy

_SAMPLE = 256


@torch.no_grad()
def rollout_diagnostics(
    policy: NavigationPolicy, rollout: Rollout, *, critic: bool, seed: int, update: int, workers: Workers = ALONE
) -> dict[str, float]:
    """Compute the early-stopping diagnostics of a rollout: td_mean, td_var and local_structure.

    Nearest neighbours are searched among 256 decisions, a stratified sample over time: consecutive decisions of one
    flight have similar observations and similar values.

    Args:
        policy: The network; its encoder gives the latents.
        rollout: Rollout of this process's rows, after its update.
        critic: Whether temporal differences are returns minus values; otherwise undiscounted returns-to-go minus
            their mean.
        seed: Of the run.
        update: Number of the update; seeds the sample.
        workers: Data-parallel processes of the run; all of them must call, and all get the same result.
    """
    if critic:
        target, expected = rollout.returns, rollout.values
    else:
        target = n_step_returns(rollout.rewards, rollout.terminated, rollout.truncated, gamma=1.0, n=rollout.steps)[0]
        expected = workers.mean(target.mean())
    deviation, mean = workers.std_mean((target - expected).double())
    return {
        "td_mean": float(mean),
        "td_var": float(deviation.square()),
        "local_structure": _structure(policy, rollout, target, seed, update, workers),
    }


def _structure(
    policy: NavigationPolicy, rollout: Rollout, target: Tensor, seed: int, update: int, workers: Workers
) -> float:
    """Compute the k-nearest-neighbour local structure of a sample of decisions from all processes of the run."""
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
    # Entries of other processes are zero here, so the sum gathers all of them (all-reduce).
    workers.sum(goals, latents)
    return local_structure(compute_knn_kernel(latents, SmoothingConfig()), goals)


def non_finite_error(
    policy: torch.nn.Module, rollout: Rollout, sums: dict[str, Tensor], packed: list[float], steps: int
) -> NonFiniteError:
    """Build the `NonFiniteError` that names the first NaN or infinite tensor of a rollout.

    Args:
        policy: The network.
        rollout: The rollout.
        sums: Sums of terms over the rollout by name.
        packed: Statistics on the host: T mean rewards, counts, and the means of `sums`.
        steps: Decisions before the rollout, summed over rows.
    """
    # In the order of cause: a bad observation also spoils the values, a bad term the reward.
    suspects: dict[str, Tensor] = {"observation": rollout.observations.by_step()}
    suspects |= {f"parameter {name}": p for name, p in policy.named_parameters()}
    suspects |= {f"reward term {name}": x for name, x in sums.items()}
    suspects |= {
        "reward": rollout.rewards,
        "aux": rollout.aux,
        "action": rollout.actions,
        "value": rollout.values,
        "log_prob": rollout.log_probs,
        "bootstrap_value": rollout.bootstrap_values,
        "episode_return": rollout.episode_return,
    }
    for name, tensor in suspects.items():
        bad = (~torch.isfinite(tensor)).sum()
        if bad:
            return NonFiniteError(
                name,
                f"{name} holds {int(bad)} NaN or infinite of {tensor.numel()} numbers in the rollout after "
                f"{steps} steps",
            )
    names = [f"mean reward of decision {t}" for t in range(rollout.steps)]
    names += ["episodes", "episode_return", "episode_length", "log_prob", "value", "bootstrap_value"]
    names += ["success_rate"] * (len(packed) - len(names) - len(sums)) + [*sums]
    broken = {name: value for name, value in zip(names, packed) if not math.isfinite(value)}
    return NonFiniteError(
        "rollout statistics",
        f"sums over the rollout are not finite though their summands here are: {broken}",
    )
