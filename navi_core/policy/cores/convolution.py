"""Causal depthwise convolution over time with a carried window, never across a reset."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["causal_convolution"]


def causal_convolution(
    raw: Tensor, window: Tensor, weight: Tensor, bias: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Convolve a sequence as one shifted multiply-add per tap.

    Args:
        raw: Inputs (B, T, channels).
        window: The inputs before them (B, channels, taps − 1), oldest first.
        weight: (channels, 1, taps), the last tap meets the newest input.
        bias: (channels,).
        reset: (B, T) bool; True hides everything before that step.

    Returns:
        Outputs (B, T, channels) and the new window.
    """
    steps, past = raw.shape[1], weight.shape[-1] - 1
    padded = torch.cat((window.transpose(1, 2), raw), dim=1)  # (B, past + T, channels)
    taps = weight[:, 0]
    # On the CPU a look at the mask is free and spares three masked copies; elsewhere it would be
    # a synchronisation. Multiplying by an all-one mask changes no bit, so both ways agree.
    masked = reset is not None and (reset.device.type != "cpu" or bool(reset.any()))
    segment = F.pad(torch.cumsum(reset, dim=1), (past, 0)) if reset is not None and masked else None
    out = torch.addcmul(bias, raw, taps[:, past])
    for back in range(1, past + 1):
        shifted = padded[:, past - back : past - back + steps]
        if segment is not None:
            same = segment[:, past - back : past - back + steps] == segment[:, past:]
            shifted = shifted * same[..., None]
        out = torch.addcmul(out, shifted, taps[:, past - back])
    last = padded[:, steps:]
    if segment is not None:
        last = last * (segment[:, steps:] == segment[:, -1:])[..., None]
    return out, last.transpose(1, 2)
