"""Recurrences for torch.compile: whole expressions, nothing written in place, gradients by autograd.

The forms beside this file save memory and passes over it by writing in place and by backwards of their own. A compiler
does that by itself, and does not follow theirs: torch 2.11 breaks its graph in them and learns from wrong gradients.
Both forms compute the same.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def convolution(padded: Tensor, taps: Tensor, bias: Tensor, segment: Tensor | None) -> Tensor:
    """Return bias + Σ_k taps_k · padded_{t+k} (B, T, channels), where t + k lies in the segment of t.

    Args:
        padded: Inputs behind the window before them (B, past + T, channels).
        taps: (past + 1, channels).
        bias: (channels,).
        segment: (B, past + T) numbers that change with every reset, or None.
    """
    past = len(taps) - 1
    steps = padded.shape[1] - past
    out = bias + padded[:, past:] * taps[past]
    for tap in range(past):
        shifted = padded[:, tap : tap + steps] * taps[tap]
        if segment is not None:
            shifted = shifted * (segment[:, tap : tap + steps] == segment[:, past:])[..., None]
        out = out + shifted
    return out


def ssd_chunk(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, h: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return outputs (B, T, H, P) and the last state of `ssd_scan` over all steps at once; arguments as there."""
    steps, per_group = x.shape[1], x.shape[2] // B.shape[2]
    total = torch.cumsum((dt * A).double(), dim=1)  # (B, T, H)
    visible = torch.ones(steps, steps, dtype=torch.bool, device=x.device).tril()
    from_start, to_end = total.to(dt.dtype).exp(), (total[:, -1:] - total).to(dt.dtype).exp()
    if reset is not None:
        segment = torch.cumsum(reset, dim=1)
        visible = visible & (segment[:, :, None] == segment[:, None, :])[:, None]  # (B, 1, T, T)
        from_start = from_start * (segment == 0)[..., None]
        to_end = to_end * (segment == segment[:, -1:])[..., None]
    by_head = total.transpose(1, 2)
    between = (by_head[..., :, None] - by_head[..., None, :]).to(dt.dtype)
    decay = between.masked_fill(~visible, -torch.inf).exp()  # (B, H, T, T)
    maps_in, maps_out = (m.repeat_interleave(per_group, dim=2).transpose(1, 2) for m in (B, C))  # (B, H, T, N)
    drive = (dt[..., None] * x).transpose(1, 2)  # (B, H, T, P)
    y = (decay * (maps_out @ maps_in.transpose(-1, -2))) @ drive
    y = y + (maps_out @ h.transpose(-1, -2)) * from_start.transpose(1, 2)[..., None]
    late = (drive * to_end.transpose(1, 2)[..., None]).transpose(-1, -2)  # (B, H, P, T)
    return y.transpose(1, 2) + D[:, None] * x, h * from_start[:, -1, :, None, None] + late @ maps_in


def gru_recurrence(
    inputs: Tensor, h: Tensor, keep: Tensor | None, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Return states (T, B, D) and the last; arguments as those of `gru_scan`, `keep` (T, B, 1) in place of resets."""
    width, outputs = h.shape[-1], []
    for t in range(len(inputs)):
        previous = h if keep is None else h * keep[t]
        hidden = F.linear(previous, weight, bias)
        gates = torch.sigmoid(inputs[t, :, : 2 * width] + hidden[:, : 2 * width])
        new = torch.tanh(inputs[t, :, 2 * width :] + gates[:, :width] * hidden[:, 2 * width :])
        h = new + gates[:, width:] * (previous - new)
        outputs.append(h)
    return torch.stack(outputs), h


def selective_recurrence(
    drive: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return h_t·C_t (T, B, E) and the last state of h_t = keep_t·exp(dt_t·A)·h_{t−1} + drive_t ⊗ B_t; time-major."""
    outputs = []
    for t in range(len(drive)):
        decay = (dt[t, :, :, None] * A).exp()
        if keep is not None:
            decay = decay * keep[t, :, None, None]
        h = h * decay + drive[t, :, :, None] * B[t, :, None]
        outputs.append((h * C[t, :, None]).sum(-1))
    return torch.stack(outputs), h


def gated_norm(y: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return norm(y · silu(z)) · weight over the last axis."""
    gated = y * F.silu(z)
    return gated * torch.rsqrt(gated.square().mean(-1, keepdim=True) + eps) * weight
