"""Meanings of the metrics of training and service, with units and good direction, for the charts of the page."""

from navi_core.config import GOAL_TERMS, REWARD_TERMS
from navi_core.evaluate.run_comparison import CURVES

_MEANINGS = CURVES | {
    "reward_mean": "reward per decision of the last rollout",
    "collision": "reward term of collisions, per decision; never positive",
    "void_rate": "decisions that end outside of the scene, a share of 1",
    "success_rate": "episodes that reach their goal, a share of 1",
    "episode_length": "length of an episode [decisions]",
    "episodes": "episodes that ended so far",
    "policy_loss": "loss of the policy",
    "value_loss": "mean squared error of the critic, in squared units of the returns",
    "total_loss": "sum of all losses, weighted",
    "loss": "loss of the last update",
    "rnd_loss": "loss of the curiosity predictor (RND)",
    "clip_fraction": "samples whose probability ratio was clipped, a share of 1",
    "clip": "clipping range of the probability ratio",
    "grad_norm": "norm of the gradient before clipping",
    "learning_rate": "step size of the optimiser",
    "entropy_coefficient": "weight of the entropy bonus",
    "epochs": "passes over the rollout in the last update",
    "beta": "weight of the curiosity reward",
    "intrinsic_reward": "curiosity reward per decision",
    "loop_penalty": "penalty of flying in circles, per decision",
    "parity_ratio": "largest deviation of the acting policy's probability ratio from 1; 0 is exact",
    "parity_value": "largest deviation of the acting policy's value; 0 is exact",
    "epsilon": "random actions, a share of 1",
    "td_mean": "mean temporal-difference error",
    "td_var": "variance of the temporal-difference error",
    "q_mean": "mean action value",
    "env_ms": "time of an environment step [ms]",
    "ppo_update_ms": "time of an update [ms]",
    "zero_wait_ratio": "rollout time in which the policy does not wait for the environment, a share of 1",
    "p50_ms": "half of the batches take less [ms]",
    "p99_ms": "99 % of the batches take less [ms]",
}
TERM_UNITS = {"progress": "m", "view_gain": "m²"}
"""Units of reward terms before their weight; the other terms have none."""
_HIGHER = {
    "reward_ema", "reward_mean", "episode_return", "view_gain", "collision", "success_rate", "explained_variance",
    "sps", "zero_wait_ratio",
}  # fmt: skip
_LOWER = {
    "collision_rate", "void_rate", "nll", "validation_nll", "value_loss", "env_ms", "ppo_update_ms", "p50_ms", "p99_ms",
    "parity_ratio", "parity_value",
}  # fmt: skip


def meaning_of(name: str) -> str:
    """Return what a metric means, with its unit and its good direction, if any; empty for one of a custom learner."""
    term = "mean of this reward term per decision" if name in (*REWARD_TERMS, *GOAL_TERMS) else ""
    better = "; higher is better" if name in _HIGHER else "; lower is better" if name in _LOWER else ""
    return _MEANINGS.get(name, term) + better
