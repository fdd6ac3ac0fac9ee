"""The policy: observation → embedding → state → action and value.

Acting (`act`, one step with a carried state) and learning (`evaluate`, a sequence from the state
stored at its start) compute the same function, resets inside the sequence included; so before the
first update the importance ratio is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from navi_core.config import PolicyConfig
from navi_core.errors import ConfigError
from navi_core.policy.cores import TemporalCore, build_core
from navi_core.policy.cores.base import State
from navi_core.policy.encoders import build_encoder
from navi_core.policy.heads import ActorCritic, gaussian_entropy, gaussian_log_prob

__all__ = ["AUX_INPUTS", "ActOutput", "EvaluateOutput", "NavigationPolicy", "build_policy", "parameter_counts"]

AUX_INPUTS = 3
"""Auxiliary inputs of the previous step: shaped reward, loop similarity, intrinsic reward."""


@dataclass(frozen=True)
class ActOutput:
    """One decision of B rows."""

    action: Tensor
    """Unclamped actions (B, 4); the environment clamps."""
    log_prob: Tensor
    """Log density of the actions (B,) [nat]."""
    value: Tensor
    """State values (B,)."""
    state: State
    """Core state after this step."""
    embedding: Tensor
    """Encoder output (B, D), before the auxiliary input."""


@dataclass(frozen=True)
class EvaluateOutput:
    """A batch of sequences seen by the current weights."""

    log_prob: Tensor
    """Log density of the given actions (B, T) [nat]."""
    value: Tensor
    """State values (B, T)."""
    entropy: Tensor
    """Entropy of the action distribution (B, T) [nat]."""
    embedding: Tensor
    """Encoder output (B, T, D), before the auxiliary input."""


class NavigationPolicy(nn.Module):
    """Encoder, auxiliary input, temporal core and Gaussian actor-critic heads.

    Args:
        config: Network configuration; kept as `config`.

    Raises:
        ConfigError: The observation size does not fit the encoder, or the width the core.
    """

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = _encoder(config)
        self.aux = None if config.aux == "off" else nn.Linear(AUX_INPUTS, config.width)
        self.core: TemporalCore = build_core(config.core, config.width, config.core_layers)
        self.heads = ActorCritic(
            config.width, log_std_init=config.log_std_init, stop_value_gradient=config.stop_value_gradient
        )

    def initial_state(self, rows: int, device: torch.device | str | None = None) -> State:
        """Return the zero core state of `rows` rows."""
        return self.core.initial_state(rows, device)

    def act(self, obs: Tensor, aux: Tensor, state: State, reset: Tensor, noise: Tensor | None) -> ActOutput:
        """Decide one step of every row.

        Args:
            obs: Raw observations (B, 3, Az, El).
            aux: Auxiliary inputs (B, 3) of the previous step; taken as zero where `reset`.
            state: Core state before this step; not modified.
            reset: (B,) bool; True where a new episode starts with this observation.
            noise: Standard normal draws (B, 4); None flies the mean.

        Returns:
            The decision; `log_prob` is that of the unclamped action.
        """
        embedding = self.encoder(obs)
        features, state = self.core.step(self._join(embedding, aux, reset), state, reset)
        mean, value = self.heads(features)
        log_std = self.heads.log_std
        action = mean if noise is None else mean + torch.exp(log_std) * noise
        return ActOutput(action, gaussian_log_prob(action, mean, log_std), value, state, embedding)

    def value(self, obs: Tensor, aux: Tensor, state: State) -> Tensor:
        """Return the values (B,) of observations (B, 3, Az, El) seen from `state`, without a reset.

        The caller's state is neither advanced nor modified: this values the last observation of an
        episode before it is reset.
        """
        features, _ = self.core.step(self._join(self.encoder(obs), aux, None), state, None)
        return self.heads.value(features)

    def evaluate(self, obs: Tensor, aux: Tensor, state0: State, reset: Tensor, actions: Tensor) -> EvaluateOutput:
        """Score given actions along sequences.

        Args:
            obs: Raw observations (B, T, 3, Az, El).
            aux: Auxiliary inputs (B, T, 3); taken as zero where `reset`.
            state0: Core state before each sequence.
            reset: (B, T) bool; True where a new episode starts.
            actions: Unclamped actions (B, T, 4).

        Returns:
            Log-probabilities, values, entropies and embeddings under the current weights.
        """
        embedding = self.encoder(obs.flatten(0, 1)).unflatten(0, obs.shape[:2])
        features, _ = self.core(self._join(embedding, aux, reset), state0, reset)
        mean, value = self.heads(features)
        log_prob = gaussian_log_prob(actions, mean, self.heads.log_std)
        entropy = gaussian_entropy(self.heads.log_std).expand_as(log_prob)
        return EvaluateOutput(log_prob, value, entropy, embedding)

    def _join(self, embedding: Tensor, aux: Tensor, reset: Tensor | None) -> Tensor:
        """Add the auxiliary input to embeddings (…, D)."""
        if self.aux is None:
            return embedding
        if aux.shape != (*embedding.shape[:-1], AUX_INPUTS):
            raise ConfigError(f"aux shape {tuple(aux.shape)} must be {(*embedding.shape[:-1], AUX_INPUTS)}")
        if reset is not None:
            aux = aux * (~reset)[..., None]
        if self.config.aux == "no_reward":
            # The shaped reward is privileged: its entry is zero in training and evaluation alike.
            aux = torch.cat((torch.zeros_like(aux[..., :1]), aux[..., 1:]), dim=-1)
        return embedding + self.aux(aux)


def _encoder(config: PolicyConfig) -> nn.Module:
    options: dict[str, Any] = {
        "width": config.width,
        "depth_shift": config.depth_shift,
        "depth_scale": config.depth_scale,
    }
    if config.encoder == "rayvit":
        options |= {"patch": config.patch_edge, "area_attention": config.area_attention}
    elif config.encoder == "spherical_cnn":
        options |= {"separable_refinement": config.separable_refinement}
    return build_encoder(config.encoder, config.azimuth_bins, config.elevation_bins, **options)


def build_policy(config: PolicyConfig, seed: int = 0) -> NavigationPolicy:
    """Build a policy whose initial weights are a function of the configuration and the seed alone.

    The global random state is neither used nor changed.

    Args:
        config: Network configuration.
        seed: Seed of the initial weights.

    Raises:
        ConfigError: The observation size does not fit the encoder, or the width the core.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return NavigationPolicy(config)


def parameter_counts(policy: NavigationPolicy) -> dict[str, int]:
    """Return the number of parameters of encoder, aux, core and heads, and their total."""
    counts = {
        name: 0 if part is None else sum(p.numel() for p in part.parameters())
        for name, part in (
            ("encoder", policy.encoder),
            ("aux", policy.aux),
            ("core", policy.core),
            ("heads", policy.heads),
        )
    }
    return counts | {"total": sum(counts.values())}
