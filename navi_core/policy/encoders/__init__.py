"""Encoders: one observation in, one embedding out, no memory."""

from __future__ import annotations

from typing import Any

from torch import nn

from navi_core.errors import ConfigError
from navi_core.policy.encoders.rayvit import RayViT, solid_angle_bias, spherical_positions
from navi_core.policy.encoders.ring_cnn import RingCNN
from navi_core.policy.encoders.spherical_cnn import SphericalCNN

__all__ = [
    "ENCODERS",
    "RayViT",
    "RingCNN",
    "SphericalCNN",
    "build_encoder",
    "solid_angle_bias",
    "spherical_positions",
]

ENCODERS: dict[str, type[nn.Module]] = {"rayvit": RayViT, "spherical_cnn": SphericalCNN, "ring_cnn": RingCNN}
"""Encoder backends by name."""


def build_encoder(name: str, azimuth_bins: int = 256, elevation_bins: int = 48, **options: Any) -> nn.Module:
    """Build an encoder that maps raw observations (B, 3, Az, El) to embeddings (B, D).

    Args:
        name: A key of `ENCODERS`.
        azimuth_bins: Az.
        elevation_bins: El.
        options: Keywords of the encoder's class (`width`, `depth_shift`, `depth_scale`; `patch` and
            `area_attention` for rayvit, `separable_refinement` for spherical_cnn).

    Raises:
        ConfigError: The name or an option is unknown, or the bins do not fit the encoder.
    """
    if name not in ENCODERS:
        raise ConfigError(f"no encoder {name!r}; allowed: {', '.join(sorted(ENCODERS))}")
    try:
        return ENCODERS[name](azimuth_bins, elevation_bins, **options)
    except TypeError as error:
        raise ConfigError(f"encoder {name}: {error}") from None
