"""Mamba-1 core: the block of the package mambapy, with an explicit state and resets.

The package's own sequence form neither takes nor returns a state. Its parameters, modules and `step` are used as they
are; the sequence form here carries the state and supports resets. Weights are exchanged with a plain
`mambapy.mamba.MambaBlock` through `block`.

In the recurrence (Gu and Dao 2023) every channel e has its own step size and N decays, so no quadratic form exists. It
is computed step by step over the batch, with a hand-written backward. The backward recomputes the decays, so only the
states of the sequence are stored.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from navi_core.errors import ConfigError
from navi_core.policy.cores.base import AutogradContext, State, TemporalCore
from navi_core.policy.cores.mamba2 import causal_convolution


class _SelectiveScan(torch.autograd.Function):
    """Autograd function of the scan h_t = keep_t·exp(dt_t·A)·h_{t−1} + drive_t ⊗ B_t,  y_t = h_t·C_t; time-major."""

    @staticmethod
    def forward(
        ctx: AutogradContext,
        drive: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        h0: Tensor,
        keep: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        steps = drive.shape[0]
        states = drive.new_empty(steps + 1, *h0.shape)
        states[0] = h0
        outputs = torch.empty_like(drive)
        for t in range(steps):
            h = torch.mul(states[t], _decay(dt[t], A, keep, t), out=states[t + 1])
            h.addcmul_(drive[t, :, :, None], B[t, :, None])
            torch.bmm(h, C[t, :, :, None], out=outputs[t, :, :, None])
        ctx.save_for_backward(drive, dt, A, B, C, states, keep)
        return outputs, states[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, grad_outputs: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        drive, dt, A, B, C, states, keep = ctx.saved_tensors
        grad_drive, grad_dt = torch.empty_like(drive), torch.empty_like(dt)
        grad_b, grad_c, grad_a = torch.empty_like(B), torch.empty_like(C), torch.zeros_like(A)
        running = grad_last.clone()
        for t in reversed(range(len(drive))):
            running.addcmul_(grad_outputs[t, :, :, None], C[t, :, None])
            torch.bmm(grad_outputs[t, :, None], states[t + 1], out=grad_c[t, :, None])
            torch.bmm(running, B[t, :, :, None], out=grad_drive[t, :, :, None])
            torch.bmm(drive[t, :, None], running, out=grad_b[t, :, None])
            running.mul_(_decay(dt[t], A, keep, t))
            # d exp(dt·A) = exp(dt·A)·d(dt·A), and `running` holds that factor now.
            to_exponent = running * states[t]
            torch.sum(to_exponent * A, dim=-1, out=grad_dt[t])
            grad_a += (to_exponent * dt[t, :, :, None]).sum(0)
        return grad_drive, grad_dt, grad_a, grad_b, grad_c, running, None


def _decay(dt: Tensor, A: Tensor, keep: Tensor | None, t: int) -> Tensor:
    decay = (dt[:, :, None] * A).exp_()
    return decay if keep is None else decay.mul_(keep[t, :, None, None])


def selective_recurrence(
    drive: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Run the selective scan (Mamba-1 recurrence) in plain PyTorch, for torch.compile; time-major.

    Returns h_t·C_t (T, B, E) and the last state of h_t = keep_t·exp(dt_t·A)·h_{t−1} + drive_t ⊗ B_t.
    """
    outputs = []
    for t in range(len(drive)):
        decay = (dt[t, :, :, None] * A).exp()
        if keep is not None:
            decay = decay * keep[t, :, None, None]
        h = h * decay + drive[t, :, :, None] * B[t, :, None]
        outputs.append((h * C[t, :, None]).sum(-1))
    return torch.stack(outputs), h


def selective_scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, h0: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Run the selective scan (Mamba-1 state-space recurrence) over a sequence.

    Args:
        x: Inputs (B, T, E).
        dt: Step sizes (B, T, E), already positive.
        A: Negative decay rates (E, N).
        B: Input maps (B, T, N).
        C: Output maps (B, T, N).
        D: Skip weights (E,).
        h0: Incoming state (B, E, N).
        reset: (B, T) bool; True zeroes the state before that step is consumed, at t = 0 also `h0`.

    Returns:
        y (B, T, E) and the final state (B, E, N), which is never zeroed. First derivatives only.
    """
    keep = None if reset is None else (~reset).t().to(x.dtype)
    drive, step, maps_in, maps_out = (part.transpose(0, 1).contiguous() for part in (dt * x, dt, B, C))
    scan = selective_recurrence if torch.compiler.is_compiling() else _SelectiveScan.apply
    y, last = scan(drive, step, A, maps_in, maps_out, h0, keep)
    return y.transpose(0, 1) + D * x, last


class MambaPyBlock(TemporalCore):
    """Mamba-1 core of one layer, (B, T, D) to (B, T, D); 153,344 parameters with the defaults.

    The state is (conv window (B, E, kernel − 1), oldest first; SSM state (B, E, N)), E the inner width.

    Args:
        width: Model width D.
        state_size: State size N; by default that of mamba2, so that both have the same memory per channel.
        kernel: Taps of the causal convolution.
        expand: Inner width over D.

    Raises:
        ConfigError: The package is not installed.
    """

    def __init__(self, width: int = 128, *, state_size: int = 64, kernel: int = 4, expand: int = 2) -> None:
        super().__init__()
        try:
            from mambapy.mamba import MambaBlock, MambaConfig
        except ImportError:
            raise ConfigError(
                "temporal core mambapy needs the package of that name: pip install mambapy; or choose mamba2 or gru"
            ) from None
        config = MambaConfig(d_model=width, n_layers=1, d_state=state_size, d_conv=kernel, expand_factor=expand)
        self.block = MambaBlock(config)
        self.width, self.inner, self.state_size, self.kernel = width, config.d_inner, state_size, kernel

    def initial_state(self, rows: int, device: torch.device | str | None = None) -> State:
        """Return the all-zero initial recurrent state for a batch of `rows`."""
        device = self.block.D.device if device is None else device
        return (
            torch.zeros(rows, self.inner, self.kernel - 1, device=device),
            torch.zeros(rows, self.inner, self.state_size, device=device),
        )

    def step(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Advance the core by one input (B, D) per row, by the package's own step."""
        window, h = state if reset is None else (part * (~reset)[:, None, None] for part in state)
        y, (h, window) = self.block.step(x, (h, window))
        return y, (window, h)

    def forward(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Run the core over a sequence (B, T, D); equals `step` applied T times."""
        block, (window, h) = self.block, state
        raw, z = block.in_proj(x).chunk(2, dim=-1)
        mixed, window = causal_convolution(raw, window, block.conv1d.weight, block.conv1d.bias, reset)
        values = F.silu(mixed)
        sizes = (block.config.dt_rank, self.state_size, self.state_size)
        dt, maps_in, maps_out = block.x_proj(values).split(sizes, dim=-1)
        dt = F.softplus(block.dt_proj(dt))
        y, h = selective_scan(values, dt, -torch.exp(block.A_log), maps_in, maps_out, block.D, h, reset)
        return block.out_proj(y * F.silu(z)), (window, h)
