"""The trunk: observation → embedding → state → features."""

from typing import Any

import torch
from torch import Tensor, nn

from navi_core.config import PolicyConfig
from navi_core.config.policy import OCCUPANCY_INPUTS, Spaces
from navi_core.errors import ConfigError
from navi_core.policy.cores import TemporalCore, build_core
from navi_core.policy.cores.base import State
from navi_core.policy.encoders import build_encoder
from navi_core.policy.encoders.tasks import PictureEncoder, VectorEncoder

AUX_INPUTS = 3
"""Auxiliary inputs of the previous step: shaped reward, loop similarity, intrinsic reward. Those of an occupancy memory
and of a goal follow."""

_PLACE_HIDDEN = 96


class Trunk(nn.Module):
    """Encoder, auxiliary input and temporal core.

    Args:
        config: Network configuration; kept as `config`.
        spaces: A reference task's, whose observations are vectors or pictures; None for flight.

    Raises:
        ConfigError: The observation size does not fit the encoder, or the width the core.
    """

    def __init__(self, config: PolicyConfig, spaces: Spaces | None = None) -> None:
        super().__init__()
        self.config = config
        self.half_encoder = False
        """Whether the encoder's products are taken in bfloat16 (autocast); what follows stays float32."""
        self.encoder = _encoder(config) if spaces is None else _task_encoder(config, spaces)
        own = config.aux_inputs - OCCUPANCY_INPUTS * config.place_memory
        self.aux = None if config.aux == "off" else nn.Linear(own, config.width)
        self.places = None
        if config.place_memory:
            self.places = nn.Sequential(
                nn.Linear(OCCUPANCY_INPUTS, _PLACE_HIDDEN), nn.ReLU(), nn.Linear(_PLACE_HIDDEN, config.width)
            )
        self.core: TemporalCore = build_core(config.core, config.width, config.core_layers)

    def step(self, obs: Tensor, aux: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, Tensor, State]:
        """Return embedding (B, D), features (B, D) and the new state of one step; no reset where it is None."""
        embedding = self._embed(obs)
        features, state = self.core.step(self.joined(embedding, aux, reset), state, reset)
        return embedding, features, state

    def sequence(self, obs: Tensor, aux: Tensor, state: State, reset: Tensor) -> tuple[Tensor, Tensor, State]:
        """Return embeddings, features (B, T, D) and the last state of sequences (B, T, …); equals `step` T times."""
        embedding = self._embed(obs.flatten(0, 1)).unflatten(0, obs.shape[:2])
        features, state = self.core(self.joined(embedding, aux, reset), state, reset)
        return embedding, features, state

    def _embed(self, obs: Tensor) -> Tensor:
        """Return embeddings (B, D), float32."""
        if not self.half_encoder:
            whole: Tensor = self.encoder(obs)
            return whole
        # The encoder scales the raw channels in float32 first; only its products are cast.
        with torch.autocast(obs.device.type, torch.bfloat16):
            out: Tensor = self.encoder(obs).float()
            return out

    @torch.no_grad()
    def forget_aux(self) -> None:
        """Make the weights of the auxiliary input zero: it is not read until it has been trained."""
        if self.aux is not None:
            self.aux.weight.zero_()

    def joined(self, embedding: Tensor, aux: Tensor, reset: Tensor | None) -> Tensor:
        """Add the auxiliary input to embeddings (…, D)."""
        if self.aux is None:
            return embedding
        wanted = (*embedding.shape[:-1], self.config.aux_inputs)
        if aux.shape != wanted:
            parts = [f"{AUX_INPUTS} of the step before", *([f"{OCCUPANCY_INPUTS} of the map"] if self.places else [])]
            raise ConfigError(
                f"aux shape {tuple(aux.shape)} must be {wanted}: {', '.join(parts)}{', the goal' * self.config.goal}; "
                "navi_core.evaluate.Autopilot makes it"
            )
        step, goal = aux[..., :AUX_INPUTS], aux[..., AUX_INPUTS:]
        if self.places is not None:
            places, goal = goal[..., :OCCUPANCY_INPUTS], goal[..., OCCUPANCY_INPUTS:]
            embedding = embedding + self.places(places)
        if reset is not None:
            # A new episode has no step before it; its goal and what is seen of its floor are known.
            step = step * (~reset)[..., None]
        if self.config.aux == "no_reward":
            # The shaped reward is privileged: its entry is zero in training and evaluation alike.
            step = torch.cat((torch.zeros_like(step[..., :1]), step[..., 1:]), dim=-1)
        out: Tensor = embedding + self.aux(torch.cat((step, goal), dim=-1) if self.config.goal else step)
        return out


def _task_encoder(config: PolicyConfig, spaces: Spaces) -> nn.Module:
    if spaces.shape:
        return PictureEncoder(spaces.shape, config.width, config.picture_channels)
    return VectorEncoder(spaces.observation, config.width, spaces.scale)


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
