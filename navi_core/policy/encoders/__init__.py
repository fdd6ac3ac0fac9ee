"""Encoders: memoryless networks from one observation to one embedding, with their registry."""

from collections.abc import Callable
from inspect import signature
from typing import Any

from torch import nn

from navi_core.config.registry import ENCODER_NAMES, Parts
from navi_core.errors import ConfigError
from navi_core.policy.checks import check_encoder
from navi_core.policy.encoders.cnn import RingCNN, SphericalCNN
from navi_core.policy.encoders.rayvit import RayViT, solid_angle_bias, spherical_positions

__all__ = [
    "ENCODERS",
    "RayViT",
    "RingCNN",
    "SphericalCNN",
    "build_encoder",
    "register_encoder",
    "solid_angle_bias",
    "spherical_positions",
]

EncoderFactory = Callable[..., nn.Module]

ENCODERS: Parts[EncoderFactory] = Parts(
    ENCODER_NAMES,
    """Enter an encoder under a name, which `policy.encoder` then takes; or as `@register_encoder("mine")`.

    The factory, a class as a rule, is called with `(azimuth_bins, elevation_bins, *, width, depth_shift, depth_scale)`,
    which are settings of the policy, and returns a `torch.nn.Module` that maps raw observations (B, 3, Az, El) to
    float32 embeddings (B, width), 128 by default. Channel 0 is normalised depth, channel 1 raw semantic ids, channel 2
    the valid mask; `ObservationScaling` brings them to the range of a network. Azimuth is a circle. An embedding is a
    function of its own row, alike in acting and in learning: no dropout, no batch normalisation. What the factory
    makes is tried when a policy is built.
    """,
)
"""Registry of encoder factories by name."""
register_encoder = ENCODERS.register


register_encoder("rayvit", RayViT)
register_encoder("spherical_cnn", SphericalCNN)
register_encoder("ring_cnn", RingCNN)


def build_encoder(name: str, azimuth_bins: int = 256, elevation_bins: int = 48, **options: Any) -> nn.Module:  # noqa: ANN401 (keywords of the factory)
    """Build an encoder that maps raw observations (B, 3, Az, El) to embeddings (B, D).

    Args:
        name: A key of `ENCODERS`.
        azimuth_bins: Az.
        elevation_bins: El.
        options: Keywords of the encoder's factory (`width`, `depth_shift`, `depth_scale`; `patch` and
            `area_attention` for rayvit, `separable_refinement` for spherical_cnn).

    Raises:
        ConfigError: The name or an option is unknown, the bins do not fit the encoder, or one that is not built in
            answers another shape.
    """
    factory = ENCODERS[name]
    if name not in ENCODER_NAMES.built_in:
        options = {"width": 128, "depth_shift": 0.2, "depth_scale": 0.1} | options
    try:
        signature(factory).bind(azimuth_bins, elevation_bins, **options)
    except TypeError as error:
        raise ConfigError(
            f"encoder {name}: {error}; it is called with (azimuth_bins, elevation_bins, {', '.join(options)})"
        ) from None
    encoder = factory(azimuth_bins, elevation_bins, **options)
    if name not in ENCODER_NAMES.built_in:
        check_encoder(name, encoder, azimuth_bins, elevation_bins, options["width"])
    return encoder
