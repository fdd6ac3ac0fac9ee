"""Mamba-2 core with an explicit state, in plain PyTorch (Dao and Gu 2024).

Parameter names, layout and gate order (norm(y · silu(z))) are those of the official block, so weights are compatible
with its fused kernels. The convolution is four shifted multiply-adds that carry the window of the last three inputs and
support resets. Its backward is written by hand because memory traffic is the cost: every tap reuses one scratch array.
"""

import math

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from navi_core.errors import ConfigError
from navi_core.policy.cores.base import AutogradContext, State, TemporalCore
from navi_core.policy.cores.ssd import ssd_scan, ssd_step


def causal_convolution(
    raw: Tensor, window: Tensor, weight: Tensor, bias: Tensor, reset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Apply a causal depthwise convolution to a sequence, with a carried input window and resets.

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
    # On the CPU reading the mask is free and saves masked passes; elsewhere it would be a
    # synchronisation. Multiplying by an all-one mask changes no bit, so both ways agree.
    looks = not torch.compiler.is_compiling() and raw.device.type == "cpu"
    masked = reset is not None and not (looks and not bool(reset.any()))
    segment = F.pad(torch.cumsum(reset, dim=1), (past, 0)) if reset is not None and masked else None
    padded = torch.cat((window.transpose(1, 2), raw), dim=1)  # (B, past + T, channels)
    last = padded[:, raw.shape[1] :]
    if segment is not None:
        last = last * (segment[:, raw.shape[1] :] == segment[:, -1:])[..., None]
    convolve = plain_convolution if torch.compiler.is_compiling() else _Convolution.apply
    return convolve(padded, weight[:, 0].t(), bias, segment), last.transpose(1, 2)


def plain_convolution(padded: Tensor, taps: Tensor, bias: Tensor, segment: Tensor | None) -> Tensor:
    """Compute the causal convolution in plain PyTorch, for torch.compile.

    Returns bias + Σ_k taps_k · padded_{t+k} (B, T, channels), where t + k lies in the segment of t.

    Args:
        padded: Window and inputs, concatenated (B, past + T, channels).
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


class _Convolution(torch.autograd.Function):
    """Autograd function of the causal convolution out_t = bias + Σ_k taps_k · padded_{t+k}, within the segment of t."""

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
    """Return a convolution tap's segment mask (B, T, 1): True where no reset lies between its input and the output."""
    steps = segment.shape[1] - past
    return (segment[:, tap : tap + steps] == segment[:, past:])[..., None]


class _GatedRMSNorm(torch.autograd.Function):
    """Autograd function of norm(y · silu(z)) · weight with little memory traffic; the gate is recomputed."""

    @staticmethod
    def forward(ctx: AutogradContext, y: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
        gated = F.silu(z).mul_(y)
        scale = torch.linalg.vector_norm(gated, dim=-1, keepdim=True).square_().div_(y.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(y, z, weight, scale)
        return gated.mul_(scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, z, weight, scale = ctx.saved_tensors
        gate = F.silu(z)
        normed = torch.mul(gate, y).mul_(scale)
        product = grad * normed
        grad_weight = product.sum(tuple(range(grad.ndim - 1)))
        # d norm(g) = scale · (d g − normed · mean(normed · d g))
        mean = (product @ weight).div_(y.shape[-1])[..., None]
        grad_gated = torch.mul(grad, weight, out=product).addcmul_(normed, mean, value=-1).mul_(scale)
        grad_z = torch.ops.aten.silu_backward(torch.mul(grad_gated, y, out=normed), z)
        return gate.mul_(grad_gated), grad_z, grad_weight, None


def gated_norm(y: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute the gated RMS norm, norm(y · silu(z)) · weight over the last axis, in plain PyTorch."""
    gated = y * F.silu(z)
    return gated * torch.rsqrt(gated.square().mean(-1, keepdim=True) + eps) * weight


class GatedRMSNorm(nn.Module):
    """Gated RMS normalisation of y · silu(z), with a weight per channel."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        """Compute norm(y · silu(z)) · weight over the last axis."""
        norm = gated_norm if torch.compiler.is_compiling() else _GatedRMSNorm.apply
        return norm(y, z, self.weight, self.eps)


class Mamba2Block(TemporalCore):
    """Mamba-2 core of one layer, (B, T, D) to (B, T, D); 117,388 parameters with the defaults.

    The state is (conv window (B, channels, d_conv − 1), oldest first; SSM state (B, H, P, N)).

    Args:
        width: Model width D.
        state_size: N.
        kernel: Taps of the causal convolution.
        expand: Inner width over D.
        head_width: P; must divide the inner width.
        groups: G, groups of heads that share B and C.

    Raises:
        ConfigError: `head_width` does not divide the inner width, or `groups` the heads.
    """

    def __init__(
        self,
        width: int = 128,
        *,
        state_size: int = 64,
        kernel: int = 4,
        expand: int = 2,
        head_width: int = 64,
        groups: int = 1,
    ) -> None:
        super().__init__()
        inner = expand * width
        if inner % head_width or (inner // head_width) % groups:
            raise ConfigError(f"inner width {inner} does not split into heads of {head_width} in {groups} groups")
        self.width, self.inner, self.state_size, self.groups = width, inner, state_size, groups
        self.heads, self.head_width, self.kernel = inner // head_width, head_width, kernel
        channels = inner + 2 * groups * state_size
        self.in_proj = nn.Linear(width, inner + channels + self.heads, bias=False)
        self.conv1d = nn.Conv1d(channels, channels, kernel, groups=channels)
        # Step sizes start log-uniform in [1e-3, 1e-1]; the bias is the inverse of softplus.
        dt = torch.exp(torch.rand(self.heads) * (math.log(1e-1) - math.log(1e-3)) + math.log(1e-3))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.A_log = nn.Parameter(torch.log(torch.empty(self.heads).uniform_(1, 16)))
        self.D = nn.Parameter(torch.ones(self.heads))
        self.norm = GatedRMSNorm(inner)
        self.out_proj = nn.Linear(inner, width, bias=False)

    def initial_state(self, rows: int, device: torch.device | str | None = None) -> State:
        """Return the all-zero initial recurrent state for a batch of `rows`: convolution window and SSM state."""
        device = self.D.device if device is None else device
        channels = self.conv1d.in_channels
        return (
            torch.zeros(rows, channels, self.kernel - 1, device=device),
            torch.zeros(rows, self.heads, self.head_width, self.state_size, device=device),
        )

    def step(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Advance the core by one input per row.

        Args:
            x: Input (B, D).
            state: State before this step; not modified.
            reset: (B,) bool; True zeroes that row's state first.

        Returns:
            Output (B, D) and the new state.
        """
        window, h = state
        if reset is not None:
            window = window * (~reset)[:, None, None]
        z, raw, dt = self._project(x)
        window = torch.cat((window, raw[..., None]), dim=-1)
        mixed = F.silu((window * self.conv1d.weight[:, 0]).sum(-1) + self._bias)
        values, maps_in, maps_out = self._split(mixed)
        y, h = ssd_step(values, dt, -torch.exp(self.A_log), maps_in, maps_out, self.D, h, reset)
        return self.out_proj(self.norm(y.flatten(1), z)), (window[..., 1:], h)

    def forward(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """Run the core over a sequence; equals `step` applied T times.

        Args:
            x: Inputs (B, T, D).
            state: State before the sequence; not modified.
            reset: (B, T) bool; True zeroes the row's state before that step is consumed.

        Returns:
            Outputs (B, T, D) and the state after the last step.
        """
        window, h = state
        z, raw, dt = self._project(x)
        mixed, window = causal_convolution(raw, window, self.conv1d.weight, self._bias, reset)
        values, maps_in, maps_out = self._split(F.silu(mixed))
        y, h = ssd_scan(values, dt, -torch.exp(self.A_log), maps_in, maps_out, self.D, h, reset)
        return self.out_proj(self.norm(y.flatten(2), z)), (window, h)

    @property
    def _bias(self) -> Tensor:
        assert self.conv1d.bias is not None
        return self.conv1d.bias

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project inputs to gate z (…, inner), convolution input (…, channels) and positive step sizes dt (…, H)."""
        z, raw, dt = self.in_proj(x).split((self.inner, self.conv1d.in_channels, self.heads), dim=-1)
        return z, raw, F.softplus(dt + self.dt_bias)

    def _split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split convolved channels into values (…, H, P) and the maps B and C (…, G, N)."""
        maps = self.groups * self.state_size
        values, maps_in, maps_out = mixed.split((self.inner, maps, maps), dim=-1)
        shape = (self.groups, self.state_size)
        return (
            values.unflatten(-1, (self.heads, self.head_width)),
            maps_in.unflatten(-1, shape),
            maps_out.unflatten(-1, shape),
        )
