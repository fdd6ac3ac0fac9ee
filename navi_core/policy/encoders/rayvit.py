"""RayViT: a small vision transformer over patches of the ray panorama.

Pre-norm layers (Xiong et al. 2020), scaled dot-product attention, no dropout, so acting and
updating compute the same function. Only the CLS token leaves the encoder, hence the last layer
computes one query per observation instead of one per patch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from navi_core.errors import ConfigError
from navi_core.policy.observation import ObservationScaling

__all__ = ["RayViT", "spherical_positions"]


def spherical_positions(azimuth_bins: int, elevation_bins: int, patch: int, width: int) -> Tensor:
    """Return fixed position codes of the patch centres, (patches, width).

    Half of the code holds cos and sin of integer multiples of the azimuth, times cos(elevation), for
    at the poles azimuth means nothing; the other half those of the polar angle. Integer harmonics
    have period 2π, so the code has no seam: first and last azimuth patch are ordinary neighbours.

    Args:
        azimuth_bins: Az; bin i looks at azimuth 2π·i/Az.
        elevation_bins: El; bin j looks at polar angle π·j/(El−1), 0 is up.
        patch: Patch edge in bins.
        width: Code width, a multiple of 4.

    Returns:
        Float32 codes; patch (a, e) is row a·(El/patch) + e.
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


class Layer(nn.Module):
    """One pre-norm transformer layer: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor, queries: int | None = None) -> Tensor:
        """Transform tokens (B, N, D); with `queries` n, only the first n tokens are computed and returned."""
        width = x.shape[-1]
        normed = self.norm1(x)
        if queries is None:
            q, k, v = self.qkv(normed).split(width, dim=-1)
        else:
            weight, bias = self.qkv.weight, self.qkv.bias
            q = F.linear(normed[:, :queries], weight[:width], bias[:width])
            k, v = F.linear(normed, weight[width:], bias[width:]).split(width, dim=-1)
            x = x[:, :queries]
        q, k, v = (self._split_heads(part) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.mlp(self.norm2(x))

    def _split_heads(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        return x.view(rows, tokens, self.heads, width // self.heads).transpose(1, 2)


class RayViT(nn.Module):
    """(B, 3, Az, El) observations to (B, D) embeddings; 306,560 parameters with the defaults.

    Args:
        azimuth_bins: Az, a multiple of the patch edge.
        elevation_bins: El, a multiple of the patch edge.
        width: Embedding width D, a multiple of `heads` and of 4.
        patch: Patch edge in bins; may grow with the resolution.
        layers: Transformer layers.
        heads: Attention heads.
        depth_shift: See `ObservationScaling`.
        depth_scale: See `ObservationScaling`.

    Raises:
        ConfigError: The patch does not divide an axis, or `heads` or 4 the width.
    """

    position: Tensor

    def __init__(
        self,
        azimuth_bins: int,
        elevation_bins: int,
        *,
        width: int = 128,
        patch: int = 8,
        layers: int = 2,
        heads: int = 4,
        depth_shift: float = 0.2,
        depth_scale: float = 0.1,
    ) -> None:
        super().__init__()
        for name, bins in (("azimuth_bins", azimuth_bins), ("elevation_bins", elevation_bins)):
            if bins % patch:
                raise ConfigError(f"{name} {bins} is not a multiple of the patch {patch} (encoder rayvit)")
        if width % heads or width % 4:
            raise ConfigError(f"width {width} is not a multiple of 4 and of {heads} heads (encoder rayvit)")
        self.scaling = ObservationScaling(azimuth_bins, elevation_bins, depth_shift, depth_scale)
        self.patches = nn.Conv2d(3, width, kernel_size=patch, stride=patch)
        self.cls = nn.Parameter(torch.randn(width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, heads, 2 * width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, width)
        # Fixed codes follow from the shape, so they stay out of checkpoints.
        position = spherical_positions(azimuth_bins, elevation_bins, patch, width)
        self.register_buffer("position", position, persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        """Encode raw observations (B, 3, Az, El) to embeddings (B, D)."""
        patches = self.patches(self.scaling(obs)).flatten(2).transpose(1, 2) + self.position
        cls = self.cls.expand(obs.shape[0], 1, -1)
        x = torch.cat((cls, patches), dim=1)
        for layer in self.layers[:-1]:
            x = layer(x)
        x = self.layers[-1](x, queries=1)
        return self.project(self.norm(x[:, 0]))
