"""RayViT: a small vision transformer encoder over patches of the ray panorama.

Pre-norm layers (Xiong et al. 2020), scaled dot-product attention, and no dropout, so acting and updating compute the
same function. Only the CLS token is the output, so the last layer has one attention query per observation.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from navi_core.errors import ConfigError
from navi_core.policy.cores.base import AutogradContext
from navi_core.policy.observation import ObservationScaling


def spherical_positions(azimuth_bins: int, elevation_bins: int, patch: int, width: int) -> Tensor:
    """Compute fixed, seamless position encodings of the patch centres on the sphere, (patches, width).

    Half of the encoding holds cos and sin of integer multiples of the azimuth, times cos(elevation), as azimuth
    is undefined at the poles. The other half holds those of the polar angle. Integer harmonics have period 2π,
    so there is no seam: first and last azimuth patch are ordinary neighbours.

    Args:
        azimuth_bins: Az; bin i looks at azimuth 2π·i/Az.
        elevation_bins: El; bin j looks at polar angle π·j/(El−1), 0 is up.
        patch: Patch edge in bins.
        width: Encoding width, a multiple of 4.

    Returns:
        Float32 encodings; patch (a, e) is row a·(El/patch) + e.
    """
    harmonics = torch.arange(1, width // 4 + 1, dtype=torch.float64)
    middle = (patch - 1) / 2
    azimuth = (torch.arange(0, azimuth_bins, patch, dtype=torch.float64) + middle) * (2 * math.pi / azimuth_bins)
    polar = (torch.arange(0, elevation_bins, patch, dtype=torch.float64) + middle) * (math.pi / (elevation_bins - 1))
    around = azimuth[:, None] * harmonics
    down = polar[:, None] * harmonics
    ring = torch.cat((around.cos(), around.sin()), dim=1)[:, None, :] * polar.sin()[None, :, None]
    height = torch.cat((down.cos(), down.sin()), dim=1)[None].expand(len(azimuth), -1, -1)
    return torch.cat((ring, height), dim=2).flatten(0, 1).float()


def solid_angle_bias(azimuth_bins: int, elevation_bins: int, patch: int) -> Tensor:
    """Compute the attention bias of every token: log solid angle relative to the patches' mean, (1 + patches,).

    The grid is uniform in angle, so a patch near a pole covers less of the sphere than one at the
    horizon (by the cosine of its elevation). Added to the attention scores, the bias makes softmax
    weigh patches by their area, as an integral over the sphere would. The CLS token, which covers
    nothing, counts as one average patch: 0.

    Args:
        azimuth_bins: Az.
        elevation_bins: El; the bins of the poles are half as high as the others.
        patch: Patch edge in bins.
    """
    step = math.pi / (elevation_bins - 1)
    centres = torch.arange(elevation_bins, dtype=torch.float64) * step
    upper, lower = (centres - step / 2).clamp_min(0), (centres + step / 2).clamp_max(math.pi)
    area = (upper.cos() - lower.cos()).view(-1, patch).sum(1)
    bias = (area / area.mean()).log().repeat(azimuth_bins // patch)
    return F.pad(bias, (1, 0)).float()


class _HalfAttention(torch.autograd.Function):
    """Autograd function of bfloat16 attention over (G, N, S) tensors as batched products, for a CPU.

    There it takes three quarters of the time of PyTorch's float32 attention, whose bfloat16 form takes over twice it.
    """

    @staticmethod
    def forward(ctx: AutogradContext, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        q = q * q.shape[-1] ** -0.5
        scores = torch.bmm(q, k.transpose(1, 2))
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        ctx.save_for_backward(q, k, v, weights)
        return torch.bmm(weights, v)

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        inner = torch.bmm(grad, v.transpose(1, 2))
        inner = torch._softmax_backward_data(inner, weights, -1, weights.dtype)
        grad_q = torch.bmm(inner, k).mul_(q.shape[-1] ** -0.5)
        return grad_q, torch.bmm(inner.transpose(1, 2), q), torch.bmm(weights.transpose(1, 2), grad), None


def attend(q: Tensor, k: Tensor, v: Tensor, key_bias: Tensor | None) -> Tensor:
    """Compute scaled dot-product attention of (B, H, N, S) tensors; `key_bias` (N,) is added to each key's scores."""
    rows, heads, tokens, _ = q.shape
    if q.dtype == torch.bfloat16 and q.device.type == "cpu" and not torch.compiler.is_compiling():
        bias = None if key_bias is None else key_bias.to(q.dtype)
        flat = (part.flatten(0, 1) for part in (q, k, v))
        mixed: Tensor = _HalfAttention.apply(*flat, bias).view(q.shape)  # type: ignore[no-untyped-call]
        return mixed
    mask = None if key_bias is None else key_bias.expand(rows, heads, tokens, tokens)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Layer(nn.Module):
    """Pre-norm transformer layer: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp: Callable[[Tensor], Tensor] = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)
        )

    def forward(self, x: Tensor, key_bias: Tensor | None = None) -> Tensor:
        """Apply the layer to tokens (B, N, D).

        Args:
            x: Tokens (B, N, D).
            key_bias: Added to the attention scores of each key, (N,).
        """
        rows, tokens, width = x.shape
        parts = self.qkv(self.norm1(x)).view(rows, tokens, 3, self.heads, width // self.heads)
        q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
        mixed = attend(q, k, v, key_bias)
        return self._residual(x, mixed.transpose(1, 2).flatten(2))

    def first_token(self, x: Tensor, key_bias: Tensor | None = None) -> Tensor:
        """Compute only the first token (B, D) of `forward(x)`, with one query and without keys and values.

        With a single query q the scores q·(W_k n + b_k) are (W_kᵀq)·n and a constant, which softmax
        drops, and Σ a (W_v n + b_v) is W_v (Σ a n) + b_v, as weights a sum to one. So each head
        attends over the normed tokens n themselves, and W_k and W_v multiply one vector per
        observation instead of N.
        """
        rows, _, width = x.shape
        heads, size = self.heads, width // self.heads
        first = x[:, 0]
        normed = self.norm1(x)
        to_query, to_key, to_value = self.qkv.weight.split(width)
        bias = self.qkv.bias
        query = F.linear(self.norm1(first), to_query, bias[:width]).view(rows, heads, size)
        query = torch.einsum("bhs,hsd->bhd", query * size**-0.5, to_key.view(heads, size, width))
        scores = torch.bmm(query, normed.transpose(1, 2)).float()
        weights = torch.softmax(scores if key_bias is None else scores + key_bias, dim=-1)
        pooled = torch.bmm(weights.to(normed.dtype), normed)
        mixed = torch.einsum("bhd,hsd->bhs", pooled, to_value.view(heads, size, width)).flatten(1)
        return self._residual(first, mixed + bias[2 * width :])

    def _residual(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + self.out(mixed)
        return x + self.mlp(self.norm2(x))


class RayViT(nn.Module):
    """Vision transformer encoder: (B, 3, Az, El) observations to (B, D) embeddings; 306,560 parameters by default.

    Args:
        azimuth_bins: Az, a multiple of the patch edge.
        elevation_bins: El, a multiple of the patch edge.
        width: Embedding width D, a multiple of `heads` and of 4.
        patch: Patch edge in bins; may grow with the resolution.
        area_attention: Weigh patches by their solid angle, see `solid_angle_bias`.
        layers: Transformer layers.
        heads: Attention heads.
        depth_shift: See `ObservationScaling`.
        depth_scale: See `ObservationScaling`.
        known_channel: See `ObservationScaling`.

    Raises:
        ConfigError: The patch does not divide an axis, or `heads` or 4 the width.
    """

    position: Tensor
    area_bias: Tensor | None

    def __init__(
        self,
        azimuth_bins: int,
        elevation_bins: int,
        *,
        width: int = 128,
        patch: int = 8,
        area_attention: bool = False,
        layers: int = 2,
        heads: int = 4,
        depth_shift: float = 0.2,
        depth_scale: float = 0.1,
        known_channel: bool = False,
    ) -> None:
        super().__init__()
        for name, bins in (("azimuth_bins", azimuth_bins), ("elevation_bins", elevation_bins)):
            if bins % patch:
                raise ConfigError(f"{name} {bins} is not a multiple of the patch {patch} (encoder rayvit)")
        if width % heads or width % 4:
            raise ConfigError(f"width {width} is not a multiple of 4 and of {heads} heads (encoder rayvit)")
        self.scaling = ObservationScaling(azimuth_bins, elevation_bins, depth_shift, depth_scale, known=known_channel)
        self.patches = nn.Conv2d(self.scaling.channels, width, kernel_size=patch, stride=patch)
        self.cls = nn.Parameter(torch.randn(width) * 0.02)
        self.layers: Iterable[Layer] = nn.ModuleList(Layer(width, heads, 2 * width) for _ in range(layers))  # type: ignore[assignment]
        self.norm = nn.LayerNorm(width)
        self.project: Callable[[Tensor], Tensor] = nn.Linear(width, width)
        # Fixed codes follow from the shape, so they stay out of checkpoints.
        position = spherical_positions(azimuth_bins, elevation_bins, patch, width)
        self.register_buffer("position", position, persistent=False)
        bias = solid_angle_bias(azimuth_bins, elevation_bins, patch) if area_attention else None
        self.register_buffer("area_bias", bias, persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        """Encode raw observations (B, 3, Az, El) to embeddings (B, D)."""
        # Patches do not overlap, so their convolution is one product; row 0 of the patches is empty,
        # and the position codes bring the CLS token there.
        patches = self.scaling.patches(obs, self.patches.kernel_size[0])
        assert self.patches.bias is not None
        codes = torch.cat((self.cls[None], self.position + self.patches.bias))
        x = F.linear(patches, self.patches.weight.flatten(1)) + codes
        *layers, last = self.layers
        for layer in layers:
            x = layer(x, self.area_bias)
        return self.project(self.norm(last.first_token(x, self.area_bias)))
