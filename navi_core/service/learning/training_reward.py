"""What one experience is worth: the reward that came, and what the gate expects."""

from __future__ import annotations

from navi_core.config import ContinuousTrainingConfig

__all__ = ["training_reward"]


def training_reward(
    actual: float, validation: float, agrees: bool | None, config: ContinuousTrainingConfig
) -> float | None:
    """Return the reward of one experience, None where it is skipped.

    The gate agrees → actual_weight · actual + simulation_weight · validation; it disagrees → penalty · validation.
    (Actual 1, validation .5: .85 and .25.)

    Args:
        actual: That came.
        validation: Expected by the gate: asked again, or then where it is not asked.
        agrees: Whether the gate judges as it did then; None where it was not asked.
        config: Mode, weights, flags.
    """
    if agrees is False and config.skip_disagreed_experiences:
        return None
    if config.reward_mode == "actual_only":
        return actual
    if config.reward_mode == "gate_signal":
        return validation
    if agrees is False:
        return config.gate_disagreement_penalty * validation
    return config.actual_reward_weight * actual + config.simulation_reward_weight * validation
