"""State space duality: the Mamba-2 recurrence as masked matrix products (Dao and Gu 2024).

Per head, with decay exp(dt·A) in (0, 1):

    h_t = exp(dt_t·A)·h_{t−1} + dt_t·x_t ⊗ B_t,        y_t = h_t·C_t + D·x_t

Up to `CHUNK` steps are computed at once as a lower-triangular T×T product; longer sequences go
chunk by chunk with the state handed on, and the last chunk is simply shorter (nothing is padded).

A reset at t zeroes h before t is consumed. It is a mask on equal segment numbers (cumsum of the
resets), not a very negative log-decay: that would cost all digits of the neighbouring differences.
The cumulative log-decay is taken in float64, for it is the difference of two large sums that counts;
the tensor is small (B·T·H).
"""

from __future__ import annotations

import torch
from torch import Tensor

from navi_core.errors import ConfigError

__all__ = ["CHUNK", "ssd_scan", "ssd_step"]

CHUNK = 64
"""Most steps in one quadratic block."""


def ssd_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    h0: Tensor | None = None,
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the selective state space recurrence over a sequence.

    Args:
        x: Inputs (B, T, H, P).
        dt: Step sizes (B, T, H), already positive.
        A: Negative decay rates (H,).
        B: Input maps (B, T, G, N); H is a multiple of G, head h uses group h // (H/G).
        C: Output maps (B, T, G, N).
        D: Skip weights (H,), or None.
        h0: Incoming state (B, H, P, N); None is zero.
        reset: (B, T) bool; True zeroes the state before that step is consumed, at t = 0 also `h0`.

    Returns:
        y (B, T, H, P) and the final state hT (B, H, P, N), which is never zeroed.

    Raises:
        ConfigError: The shapes do not fit each other.
    """
    _check(x, dt, A, B, C, h0, reset)
    rows, steps, heads, width = x.shape
    h = x.new_zeros(rows, heads, width, B.shape[-1]) if h0 is None else h0
    outputs = []
    for start in range(0, steps, CHUNK):
        part = slice(start, start + CHUNK)
        y, h = _chunk(x[:, part], dt[:, part], A, B[:, part], C[:, part], h, None if reset is None else reset[:, part])
        outputs.append(y)
    y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
    if D is not None:
        y = y + D[:, None] * x
    return y, h


def ssd_step(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, h: Tensor, reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Advance the recurrence of `ssd_scan` by one step.

    Args:
        x: Input (B, H, P).
        dt: Step sizes (B, H), positive.
        A: Negative decay rates (H,).
        B: Input map (B, G, N).
        C: Output map (B, G, N).
        D: Skip weights (H,).
        h: State (B, H, P, N); not modified.
        reset: (B,) bool, or None.

    Returns:
        y (B, H, P) and the new state (B, H, P, N).
    """
    rows, heads, width = x.shape
    size = B.shape[-1]
    decay = torch.exp(dt * A)
    if reset is not None:
        decay = decay * (~reset)[:, None]
    per_group = heads // B.shape[1]
    inputs = _per_head(B, per_group).reshape(rows * heads, 1, size)
    drive = (dt[..., None] * x).view(rows * heads, width, 1)
    h = torch.baddbmm((h * decay[..., None, None]).view(rows * heads, width, size), drive, inputs)
    y = torch.bmm(h, _per_head(C, per_group).reshape(rows * heads, size, 1)).view(rows, heads, width)
    return y + D[:, None] * x, h.view(rows, heads, width, size)


def _per_head(maps: Tensor, per_group: int) -> Tensor:
    """Repeat group maps (B, G, N) to (B, H, N)."""
    return maps if per_group == 1 else maps.repeat_interleave(per_group, dim=1)


def _chunk(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Quadratic form over at most CHUNK steps; shapes as `ssd_scan`."""
    rows, steps, heads, width = x.shape
    groups, size = B.shape[2:]
    total = torch.cumsum((dt * A).double(), dim=1).transpose(1, 2)  # (B, H, T)
    visible = torch.ones(steps, steps, dtype=torch.bool, device=x.device).tril()
    from_start = from_end = None
    if reset is not None:
        segment = torch.cumsum(reset, dim=1)
        visible = visible & (segment[:, :, None] == segment[:, None, :])[:, None]  # (B, 1, T, T)
        from_start = (segment == 0)[:, None]  # (B, 1, T)
        from_end = (segment == segment[:, -1:])[:, None]
    # Mask before exp: above the diagonal the difference is positive and exp could overflow.
    decay = (total[..., :, None] - total[..., None, :]).to(x.dtype).masked_fill(~visible, -torch.inf).exp()

    maps_in, maps_out = B.transpose(1, 2), C.transpose(1, 2)  # (B, G, T, N)
    match = maps_out @ maps_in.transpose(-1, -2)  # (B, G, T, T), shared by the heads of a group
    mixing = decay.view(rows, groups, heads // groups, steps, steps) * match[:, :, None]
    drive = (dt[..., None] * x).transpose(1, 2)  # (B, H, T, P)
    y = mixing.view(rows, heads, steps, steps) @ drive

    carry = total.to(x.dtype).exp()  # decay of h0 up to t, (B, H, T)
    if from_start is not None:
        carry = carry * from_start
    # C_t against every row of the group's states in one product.
    states = h0.reshape(rows, groups, heads // groups * width, size)
    seen = (maps_out @ states.transpose(-1, -2)).view(rows, groups, steps, heads // groups, width)
    y = y + seen.transpose(2, 3).reshape(rows, heads, steps, width) * carry[..., None]

    to_end = (total[..., -1:] - total).to(x.dtype).exp()
    if from_end is not None:
        to_end = to_end * from_end
    weighted = (drive * to_end[..., None]).view(rows, groups, heads // groups, steps, width)
    gathered = weighted.transpose(3, 4) @ maps_in[:, :, None]  # (B, G, H/G, P, N)
    h = gathered.view(rows, heads, width, size) + h0 * carry[..., -1, None, None]
    return y.transpose(1, 2), h


def _check(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor | None, reset: Tensor | None) -> None:
    if x.ndim != 4 or B.ndim != 4:
        raise ConfigError(f"x {tuple(x.shape)} and B {tuple(B.shape)} must be (B, T, H, P) and (B, T, G, N)")
    rows, steps, heads, width = x.shape
    groups, size = B.shape[2:]
    if steps < 1 or heads % groups:
        raise ConfigError(f"need T ≥ 1 and heads {heads} a multiple of groups {groups}; T is {steps}")
    wanted = {
        "dt": (dt, (rows, steps, heads)),
        "A": (A, (heads,)),
        "B": (B, (rows, steps, groups, size)),
        "C": (C, (rows, steps, groups, size)),
        "h0": (h0, (rows, heads, width, size)),
        "reset": (reset, (rows, steps)),
    }
    for name, (tensor, shape) in wanted.items():
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ConfigError(f"{name} has shape {tuple(tensor.shape)}, must be {shape}")
