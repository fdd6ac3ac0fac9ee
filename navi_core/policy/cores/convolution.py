"""Causal depthwise convolution over time with a carried window, never across a reset.

One shifted multiply-add per tap. The backward is written by hand because the arrays are large and
the arithmetic trivial: what costs is memory, so every tap reuses one scratch array.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from navi_core.policy.cores import plain
from navi_core.policy.cores.base import AutogradContext


def causal_convolution(
    raw: Tensor, window: Tensor, weight: Tensor, bias: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Convolve a sequence.

    Args:
        raw: Inputs (B, T, channels).
        window: The inputs before them (B, channels, taps − 1), oldest first.
        weight: (channels, 1, taps), the last tap meets the newest input.
        bias: (channels,).
        reset: (B, T) bool; True hides everything before that step.

    Returns:
        Outputs (B, T, channels) and the new window. First derivatives only.
    """
    past = weight.shape[-1] - 1
    # On the CPU a look at the mask is free and spares masked passes; elsewhere it would be a
    # synchronisation. Multiplying by an all-one mask changes no bit, so both ways agree.
    looks = not torch.compiler.is_compiling() and raw.device.type == "cpu"
    masked = reset is not None and not (looks and not bool(reset.any()))
    segment = F.pad(torch.cumsum(reset, dim=1), (past, 0)) if reset is not None and masked else None
    padded = torch.cat((window.transpose(1, 2), raw), dim=1)  # (B, past + T, channels)
    last = padded[:, raw.shape[1] :]
    if segment is not None:
        last = last * (segment[:, raw.shape[1] :] == segment[:, -1:])[..., None]
    convolve = plain.convolution if torch.compiler.is_compiling() else _Convolution.apply
    return convolve(padded, weight[:, 0].t(), bias, segment), last.transpose(1, 2)


class _Convolution(torch.autograd.Function):
    """out_t = bias + Σ_k taps_k · padded_{t+k}, where t + k lies in the segment of t."""

    @staticmethod
    def forward(ctx: AutogradContext, padded: Tensor, taps: Tensor, bias: Tensor, segment: Tensor | None) -> Tensor:
        past = len(taps) - 1
        steps = padded.shape[1] - past
        out = torch.addcmul(bias, padded[:, past:], taps[past])
        scratch = torch.empty_like(out)
        for tap in range(past - 1, -1, -1):
            shifted = padded[:, tap : tap + steps]
            if segment is not None:
                shifted = torch.mul(shifted, _same(segment, tap, past), out=scratch)
            out.addcmul_(shifted, taps[tap])
        ctx.save_for_backward(padded, taps, segment)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        padded, taps, segment = ctx.saved_tensors
        past = len(taps) - 1
        steps = grad.shape[1]
        grad_padded, grad_taps = torch.zeros_like(padded), torch.empty_like(taps)
        scratch, product = torch.empty_like(grad), torch.empty_like(grad)
        for tap in range(past + 1):
            here = slice(tap, tap + steps)
            visible = grad
            if segment is not None and tap < past:
                visible = torch.mul(grad, _same(segment, tap, past), out=scratch)
            grad_padded[:, here].addcmul_(visible, taps[tap])
            torch.sum(torch.mul(visible, padded[:, here], out=product), dim=(0, 1), out=grad_taps[tap])
        return grad_padded, grad_taps, grad.sum((0, 1)), None


def _same(segment: Tensor, tap: int, past: int) -> Tensor:
    """Whether the input a tap meets is in the output's segment, (B, T, 1)."""
    steps = segment.shape[1] - past
    return (segment[:, tap : tap + steps] == segment[:, past:])[..., None]
