"""State space duality (SSD): the Mamba-2 recurrence as masked matrix products (Dao and Gu 2024).

Per head, with decay exp(dt·A) in (0, 1):

    h_t = exp(dt_t·A)·h_{t−1} + dt_t·x_t ⊗ B_t,        y_t = h_t·C_t + D·x_t

Up to `CHUNK` steps are computed at once as a lower-triangular T×T product; longer sequences go
chunk by chunk with the state handed on, and the last chunk is simply shorter (nothing is padded).

A reset at t zeroes h before t is consumed. It is a mask on equal segment numbers (cumsum of the
resets), not a very negative log-decay: that would cost all digits of the neighbouring differences.
The cumulative log-decay is taken in float64, for it is the difference of two large sums that counts;
the tensor is small (B·T·H).

The backward is written by hand. With u = dt·x and ȳ, ū, h̄ the gradients, the gradient of the
cumulative log-decay at t is ȳ_t·y_t − u_t·ū_t, and h̄·h_T more at the last step: every term of y_t
and h_T is a product with exactly one factor exp(L_t − …), so the T×T gradient is never reduced.
What a step adds to its own output, (C_t·B_t)·u_t, has no decay in it and would cancel there; it is
many times the rest, so it is left out of both, or single precision would keep two digits of A's gradient.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from navi_core.errors import ConfigError
from navi_core.policy.cores.base import AutogradContext

CHUNK = 64
"""Largest chunk length of the quadratic form [steps]."""


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
    """Run the selective state-space recurrence (Mamba-2) over a sequence, chunk by chunk.

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
        y (B, T, H, P) and the final state hT (B, H, P, N), which is never zeroed. First derivatives only.

    Raises:
        ConfigError: The shapes do not fit each other.
    """
    _check(x, dt, A, B, C, h0, reset)
    rows, _, heads, width = x.shape
    h = x.new_zeros(rows, heads, width, B.shape[-1]) if h0 is None else h0
    skip = x.new_zeros(heads) if D is None else D
    if torch.compiler.is_compiling():
        return _compiled(x, dt, A, B, C, skip, h, reset)
    out: tuple[Tensor, Tensor] = _Scan.apply(x, dt, A, B, C, skip, h, reset)  # type: ignore[no-untyped-call]
    return out


def _compiled(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, h: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    outputs = []
    for start in range(0, x.shape[1], CHUNK):
        part = slice(start, start + CHUNK)
        resets = None if reset is None else reset[:, part]
        y, h = ssd_chunk(x[:, part], dt[:, part], A, B[:, part], C[:, part], D, h, resets)
        outputs.append(y)
    return torch.cat(outputs, dim=1), h


def ssd_chunk(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, h: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute one chunk of `ssd_scan` in quadratic form, plain PyTorch for torch.compile.

    Returns outputs (B, T, H, P) and the last state; the arguments are those of `ssd_scan`.
    """
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


class _Scan(torch.autograd.Function):
    """Autograd function of `ssd_scan` with all arguments given; arrays by step are (B, T, …), by head (B, H, T, …)."""

    @staticmethod
    def forward(
        ctx: AutogradContext,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor,
        h: Tensor,
        reset: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        # The part of y that passed a decay. The backward needs it; y minus the rest would lose digits (cancellation).
        decayed = torch.empty_like(y) if any(ctx.needs_input_grad) else y
        kept: list[Tensor] = []
        for start in range(0, x.shape[1], CHUNK):
            part = slice(start, start + CHUNK)
            decay = _decays(dt[:, part], A, None if reset is None else reset[:, part])
            mixing, own, new = _advance(x[:, part], dt[:, part], B[:, part], C[:, part], h, decay, decayed[:, part])
            torch.addcmul(decayed[:, part], x[:, part], (own * dt[:, part] + D)[..., None], out=y[:, part])
            kept += [*decay, mixing, own, h]
            h = new
        ctx.save_for_backward(x, dt, A, B, C, D, decayed, h, *kept)
        ctx.set_materialize_grads(False)
        return y, h

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, grad_y: Tensor | None, grad_h: Tensor | None) -> tuple[Tensor | None, ...]:
        x, dt, A, B, C, D, decayed, h, *kept = ctx.saved_tensors
        if grad_y is None:
            grad_y = torch.zeros_like(decayed)
        through_skip = (grad_y * x).sum(-1)  # (B, T, H)
        grad_x, grad_dt = torch.empty_like(decayed), torch.empty_like(dt, memory_format=torch.contiguous_format)
        grad_b, grad_c = (torch.empty_like(m, memory_format=torch.contiguous_format) for m in (B, C))
        grad_a = torch.zeros_like(A, dtype=torch.float64)
        to_log = (grad_y * decayed).sum(-1).double()
        for chunk in reversed(range(len(kept) // 6)):
            part = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
            step = dt[:, part]
            *decay, mixing, own, before = kept[6 * chunk : 6 * chunk + 6]
            log = to_log[:, part]
            if grad_h is not None:
                log[:, -1] += (grad_h * h).sum((-2, -1))
            grad_u, grad_h = _retreat(
                x[:, part], step, B[:, part], C[:, part], before, decay, mixing,
                grad_y[:, part], grad_h, grad_b[:, part], grad_c[:, part], chunk > 0 or ctx.needs_input_grad[6],
            )  # fmt: skip
            h = before
            by_step = (grad_u * x[:, part]).sum(-1)
            log -= by_step * step
            # The cumulative sum's own gradient is the sum over what comes after.
            exponent = log.flip(1).cumsum(1).flip(1)
            grad_a += (exponent * step).sum((0, 1))
            torch.addcmul(by_step, own, through_skip[:, part], out=grad_dt[:, part])
            grad_dt[:, part] += (exponent * A).to(by_step.dtype)
            torch.mul(grad_u, step[..., None], out=grad_x[:, part])
            grad_x[:, part].addcmul_(grad_y[:, part], (own * step + D)[..., None])
        return grad_x, grad_dt, grad_a.to(A.dtype), grad_b, grad_c, through_skip.sum((0, 1)), grad_h, None


def _decays(dt: Tensor, A: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Compute SSD decay factors: step s to t (B, H, T, T), incoming state to t, and t to the chunk's end (B, T, H)."""
    steps = dt.shape[1]
    total = torch.cumsum((dt * A).double(), dim=1)  # (B, T, H)
    by_head = total.transpose(1, 2)
    visible = torch.ones(steps, steps, dtype=torch.bool, device=dt.device).tril()
    from_start, to_end = total.to(dt.dtype).exp(), (total[:, -1:] - total).to(dt.dtype).exp()
    # On the CPU reading the mask is free and saves masked passes; elsewhere it would be a synchronisation.
    if reset is not None and (reset.device.type != "cpu" or bool(reset.any())):
        segment = torch.cumsum(reset, dim=1)
        visible = visible & (segment[:, :, None] == segment[:, None, :])[:, None]  # (B, 1, T, T)
        from_start.mul_((segment == 0)[..., None])
        to_end.mul_((segment == segment[:, -1:])[..., None])
    # Mask before exp: above the diagonal the difference is positive and exp could overflow.
    between = (by_head[..., :, None] - by_head[..., None, :]).to(dt.dtype)
    return between.masked_fill_(~visible, -torch.inf).exp_(), from_start, to_end


def _advance(
    x: Tensor, dt: Tensor, B: Tensor, C: Tensor, h0: Tensor, decay: tuple[Tensor, ...], decayed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Forward pass of one chunk: write the outputs, without each step's own contribution, into `decayed`.

    Returns:
        The mixing weights (B, H, T, T) with zeros on the diagonal, that diagonal C_t·B_t (B, T, H), and the state
        after the chunk.
    """
    between, from_start, to_end = decay
    maps_in, maps_out = B.transpose(1, 2), C.transpose(1, 2)  # (B, G, T, N)
    match = maps_out @ maps_in.transpose(-1, -2)  # (B, G, T, T), shared by the heads of a group
    mixing = between.unflatten(1, (match.shape[1], -1)) * match[:, :, None]
    mixing = mixing.view_as(between)
    diagonal = mixing.diagonal(dim1=-2, dim2=-1)
    own = diagonal.transpose(1, 2).clone(memory_format=torch.contiguous_format)  # no decay from a step to itself
    diagonal.zero_()
    decayed.transpose(1, 2).copy_(mixing @ _by_head(x, dt))
    # C_t against every row of the group's states in one product.
    states = _grouped_state(h0, B)
    seen = (maps_out @ states.transpose(-1, -2)).transpose(1, 2).reshape(x.shape)
    decayed.addcmul_(seen, from_start[..., None])
    weighted = _grouped(x * (dt * to_end)[..., None], B)
    h = h0 * from_start[:, -1, :, None, None]
    h.view(-1, *states.shape[2:]).baddbmm_(weighted.transpose(-1, -2).flatten(0, 1), maps_in.flatten(0, 1))
    return mixing, own, h


def _retreat(
    x: Tensor,
    dt: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    decay: list[Tensor],
    mixing: Tensor,
    grad_y: Tensor,
    grad_h: Tensor | None,
    grad_b: Tensor,
    grad_c: Tensor,
    further: bool,
) -> tuple[Tensor, Tensor | None]:
    """Backward pass of one chunk: fill the gradients of B and C; return those of dt·x and, if `further`, of `h0`.

    The gradient of dt·x excludes each step's contribution to its own output.
    """
    between, from_start, to_end = decay
    maps_in, maps_out = B.transpose(1, 2), C.transpose(1, 2)
    grad_by_head = grad_y.transpose(1, 2).contiguous()
    grad_match = (grad_by_head @ _by_head(x, dt).transpose(-1, -2)).mul_(between)
    grad_match = grad_match.unflatten(1, (maps_in.shape[1], -1)).sum(2) if B.shape[2] != x.shape[2] else grad_match
    grad_u = (mixing.transpose(-1, -2) @ grad_by_head).transpose(1, 2)
    grad_in, grad_out = grad_match.transpose(-1, -2) @ maps_out, grad_match @ maps_in
    grad_seen = _grouped(grad_y * from_start[..., None], B)
    grad_out += grad_seen @ _grouped_state(h0, B)
    grad_state = (grad_seen.transpose(-1, -2) @ maps_out).view_as(h0) if further else None
    if grad_h is not None:
        grad_final = _grouped_state(grad_h, B)
        grad_in += _grouped(x * (dt * to_end)[..., None], B) @ grad_final
        through_end = (maps_in @ grad_final.transpose(-1, -2)).transpose(1, 2).reshape(x.shape)
        grad_u = torch.addcmul(grad_u, through_end, to_end[..., None])
        if grad_state is not None:
            grad_state.addcmul_(grad_h, from_start[:, -1, :, None, None])
    grad_b.copy_(grad_in.transpose(1, 2))
    grad_c.copy_(grad_out.transpose(1, 2))
    return grad_u, grad_state


def _by_head(x: Tensor, dt: Tensor) -> Tensor:
    """Compute the discretised inputs dt·x, transposed to head-major layout (B, H, T, P)."""
    rows, steps, heads, width = x.shape
    out = x.new_empty(rows, heads, steps, width)
    return torch.mul(x.transpose(1, 2), dt.transpose(1, 2)[..., None], out=out)


def _grouped(by_step: Tensor, maps: Tensor) -> Tensor:
    """Reshape (B, T, H, P) to (B, G, T, H/G·P): heads by group, for batched matrix products."""
    return by_step.view(*by_step.shape[:2], maps.shape[2], -1).transpose(1, 2)


def _grouped_state(h: Tensor, maps: Tensor) -> Tensor:
    """Reshape a recurrent state (B, H, P, N) to (B, G, H/G·P, N), heads by group."""
    return h.reshape(h.shape[0], maps.shape[2], -1, h.shape[-1])


def ssd_step(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, h: Tensor, reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Advance the selective state-space recurrence (Mamba-2) by one step; the acting form of `ssd_scan`.

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
    h = (h * decay[..., None, None]).view(rows * heads, width, size).baddbmm_(drive, inputs)
    y = torch.bmm(h, _per_head(C, per_group).reshape(rows * heads, size, 1)).view(rows, heads, width)
    return y + D[:, None] * x, h.view(rows, heads, width, size)


def _per_head(maps: Tensor, per_group: int) -> Tensor:
    """Expand per-group maps B or C (B, G, N) to all heads, (B, H, N)."""
    return maps if per_group == 1 else maps.repeat_interleave(per_group, dim=1)


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
