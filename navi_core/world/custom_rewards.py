"""Custom reward terms: registered by name, weighted like Navi's, computed from a `StepBatch`."""

from collections.abc import Callable
from dataclasses import replace

import torch

from navi_core.config import REWARD_TERMS, EnvConfig
from navi_core.config.registry import Parts, registration
from navi_core.config.world import REWARD_NAMES
from navi_core.errors import ConfigError, NonFiniteError
from navi_core.world.interface import StepBatch

RewardTerm = Callable[[StepBatch, torch.Tensor], torch.Tensor]
"""Reward (B,) float32 of a step and of the (B, 4) actions in [−1, 1] that were flown in it."""

REWARDS: Parts[Callable[[EnvConfig], RewardTerm]] = Parts(REWARD_NAMES)
"""Every reward term by name; Navi's are computed by `RewardTerms` and the kernels."""

register_reward = registration(
    REWARDS,
    """Enter a reward term under a name, which `env.reward.weights` then weighs; or as `@register_reward("mine")`.

    The factory is called with the `EnvConfig` and returns the term: a function of a `StepBatch`, as Navi's own terms
    leave it, and of the (B, 4) actions in [−1, 1], that returns (B,) numbers. A row's number hangs on that row of that
    step alone, so that drones fly alike in any batch and a run resumes exactly. A reward with memory needs a custom
    environment. The gate's expected reward and the viewers' terms know Navi's alone.
    """,
)


def _computed(name: str) -> Callable[[EnvConfig], RewardTerm]:
    return lambda config: lambda batch, action: batch.info["reward_terms"][name]


for _name in REWARD_TERMS:
    register_reward(_name, _computed(_name))


class CustomRewards:
    """Custom terms of an environment; those of weight 0 are recorded and add nothing.

    Args:
        config: Of the environment.

    Raises:
        ConfigError: A term is not registered, or is built as what cannot be called.
    """

    def __init__(self, config: EnvConfig) -> None:
        weights = config.reward.resolved()
        self._terms: dict[str, tuple[RewardTerm, float]] = {}
        for name in sorted(weights.keys() - set(REWARD_TERMS)):
            term = REWARDS[name](config)
            if not callable(term):
                raise ConfigError(f"reward term {name!r} is built as {type(term).__name__}, which cannot be called")
            self._terms[name] = term, weights[name]

    def __bool__(self) -> bool:
        return bool(self._terms)

    def add_to(self, batch: StepBatch, action: torch.Tensor, returns: torch.Tensor) -> StepBatch:
        """Return the step with these terms.

        Args:
            batch: The step without them.
            action: (B, 4) as asked for.
            returns: (B,) sums of the rewards of the episodes that go on, changed in place.

        Raises:
            ConfigError: A term returns something else than (B,) numbers.
            NonFiniteError: On the CPU, a term is NaN or infinite; the step has been flown.
        """
        action = action.clamp(-1.0, 1.0)
        terms = {name: self._checked(name, term(batch, action), batch) for name, (term, _) in self._terms.items()}
        extra = torch.zeros_like(batch.reward)
        for name, value in terms.items():
            extra = extra + self._terms[name][1] * value
        returns += torch.where(batch.truncated | batch.terminated, 0.0, extra)
        info = batch.info.copy()
        info["reward_terms"] = info["reward_terms"] | terms
        info["episode_return"] = info["episode_return"] + extra
        return replace(batch, reward=batch.reward + extra, info=info)

    @staticmethod
    def _checked(name: str, value: torch.Tensor, batch: StepBatch) -> torch.Tensor:
        if not isinstance(value, torch.Tensor) or value.shape != batch.reward.shape:
            found = f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise ConfigError(f"reward term {name!r} returned {found}, expected ({len(batch.reward)},): one a drone")
        value = value.detach().to(batch.reward)
        if value.device.type == "cpu" and not value.isfinite().all():
            row = int(value.isfinite().logical_not().nonzero()[0])
            raise NonFiniteError(name, f"reward term {name!r} is {float(value[row])} in row {row}, not finite")
        return value
