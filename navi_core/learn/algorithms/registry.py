"""Registry of learners, built-in and custom; `algorithm` selects one for the common run loops."""

from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from navi_core.config import REWARD_TERMS, TrainConfig
from navi_core.config.registry import LEARNER_NAMES, Parts
from navi_core.errors import ConfigError
from navi_core.learn.algorithms.cloning import CloningLearner
from navi_core.learn.algorithms.dpo import DPOLearner
from navi_core.learn.algorithms.dqn import DQNLearner
from navi_core.learn.algorithms.gradient_steps import UpdateStats
from navi_core.learn.algorithms.grpo import GRPOLearner
from navi_core.learn.algorithms.ppo import PPOLearner
from navi_core.learn.parallel import ALONE, Workers
from navi_core.policy import NavigationPolicy, RewardShaper, custom_networks
from navi_core.world.rewards import REWARDS


class Learner(Protocol):
    """Protocol of a learner for the run loops: optimiser, `update`, `state_dict` and `load_state_dict`."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Optimiser of the policy's weights; its state goes into the checkpoint."""

    def update(self, data: Any, /, *, index: int, steps: int) -> UpdateStats:  # noqa: ANN401 (each learner has its own data)
        """Update the policy on one rollout, or, for bc, on one epoch of demonstrations."""

    def state_dict(self) -> dict[str, Any]:
        """Return the learner's state besides the policy's weights and `optimizer`."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the learner's state from a `state_dict`."""


@runtime_checkable
class KeepsData(Protocol):
    """Protocol of a learner with data too large for a checkpoint, kept in a file beside it (replay buffer)."""

    def save_beside(self, checkpoint: Path) -> None:
        """Write the data file beside a checkpoint that is about to be written."""

    def load_beside(self, checkpoint: Path) -> None:
        """Load the data file beside a checkpoint, after `load_state_dict`."""


@runtime_checkable
class TakesVocabulary(Protocol):
    """Protocol of a learner with data from a file that has named surfaces (semantic ids)."""

    def use_vocabulary(self, vocabulary: Mapping[str, int]) -> None:
        """Remap the data's semantic ids to the corpus vocabulary."""

    def scenes_of_data(self) -> list[str]:
        """Return the content and source hashes of the data's scenes, as far as they are known."""


@runtime_checkable
class TakesUnits(Protocol):
    """Protocol of a learner that trains a critic on normalised returns, or keeps its normalisation state."""

    def begin_from(self, state: dict[str, Any]) -> None:
        """Load the critic's normalisation state of the run whose weights the policy starts from."""


@runtime_checkable
class FollowsEpisodes(Protocol):
    """Protocol of a learner with per-episode state."""

    def begin_episodes(self) -> None:
        """Reset the per-episode state, because all rows begin new episodes."""


Factory = Callable[..., Learner]

LEARNERS: Parts[Factory] = Parts(
    LEARNER_NAMES,
    """Enter a learner under a name, which `algorithm` and `navi train` then take; or as `@register_learner("mine")`.

    The factory, a class as a rule, is called with `(policy, shaper, config, device, workers)` and, as keywords, with
    the settings `learner_options`; it returns a `Learner`: with `optimizer`, `update(rollout, *, index, steps)`, which
    returns `UpdateStats`, `state_dict` and `load_state_dict`. The run loop flies, stores, checkpoints and resumes; the
    learner only updates, on one `Rollout`, whose length, sequences and gradient settings are those of section `ppo`.
    `PPOLearner` and `GradientSteps` may be built upon. Data too large for a checkpoint goes beside it: `KeepsData`.
    """,
)
"""Registry of learner factories by name."""
register_learner = LEARNERS.register


register_learner("ppo", PPOLearner)
register_learner("grpo", GRPOLearner)
register_learner("dpo", DPOLearner)
register_learner("dqn", DQNLearner)
register_learner("bc", CloningLearner)


def build_learner(
    policy: NavigationPolicy, shaper: RewardShaper, config: TrainConfig, device: torch.device, workers: Workers = ALONE
) -> Learner:
    """Build the learner that `config.algorithm` names.

    Raises:
        ConfigError: There is no such learner, it has no such option, or a custom one lacks a member.
    """
    name, options = config.algorithm, config.learner_options
    factory = LEARNERS[name]
    if name in LEARNER_NAMES.built_in:
        return factory(policy, shaper, config, device, workers)
    try:
        signature(factory).bind(policy, shaper, config, device, workers, **options)
    except TypeError as error:
        arguments = ", ".join(["policy, shaper, config, device, workers", *options])
        raise ConfigError(f"learner {name}: {error}; it is called with ({arguments})") from None
    learner = factory(policy, shaper, config, device, workers, **options)
    lacking = [part for part in ("optimizer", "update", "state_dict", "load_state_dict") if not hasattr(learner, part)]
    if lacking:
        raise ConfigError(f"learner {name} is {type(learner).__name__}, which has no {', '.join(lacking)}")
    return learner


def custom_code(config: TrainConfig) -> str | None:
    """Return the source digests of custom networks, learner and reward terms; None without any.

    With the settings, the seed and the code of Navi they determine a training's result.

    Raises:
        ConfigError: A part is neither built in nor registered.
    """
    sources = {f"learner {config.algorithm}": LEARNERS.source(config.algorithm)}
    for name in sorted(config.env.reward.weights.keys() - set(REWARD_TERMS)):
        sources[f"reward term {name}"] = REWARDS.source(name)
    digests = [f"{part} {source}" for part, source in sources.items() if source is not None]
    networks = custom_networks(config.policy.encoder, config.policy.core)
    return ", ".join(digests if networks is None else [networks, *digests]) or None
