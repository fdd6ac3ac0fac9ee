"""Nearest neighbours in latent space, and the kernel rows over them.

Latents are set on the unit sphere, where ‖a − b‖² = 2 − 2a·b. Neighbours are found by these products, block by block;
distances to them are then taken from differences, for the products lose digits where two latents nearly coincide.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from navi_core.config import SmoothingConfig
from navi_core.errors import ConfigError


@dataclass(frozen=True)
class Kernel:
    """Kernel rows of N latents over their k nearest neighbours.

    Attributes:
        index: (N, k) int64 neighbours, nearest first; never the row itself.
        weight: (N, k), rows sum to 1.
        sigma: (N,) widths.
    """

    index: Tensor
    weight: Tensor
    sigma: Tensor

    def mean(self, h: Tensor) -> Tensor:
        """Return the neighbours' weighted means G (N, F) of h (N, F)."""
        return (self.weight[..., None] * h[self.index]).sum(1)

    def entropy(self) -> Tensor:
        """Return −Σ p log p of every row (N,)."""
        out: Tensor = torch.special.entr(self.weight).sum(1)
        return out


def compute_knn_kernel(z: Tensor, config: SmoothingConfig, importance: Tensor | None = None) -> Kernel:
    """Weigh the k nearest neighbours of every latent by exp(−‖z_i − z_j‖² / 2σ_i²), σ_i the distance to the k-th.

    Args:
        z: (N, d) latents, N at least 2.
        config: k, bounds of σ, rows of a block.
        importance: (N,) weights of the neighbours, or None.

    Raises:
        ConfigError: Fewer than two latents, or not (N, d).
    """
    if z.ndim != 2 or len(z) < 2:
        raise ConfigError(f"latents of shape {tuple(z.shape)}; a kernel needs (N, d) with N of at least 2")
    unit = torch.nn.functional.normalize(z.detach(), dim=1)
    # A latent that is all zero lies 1 from every other and 0 from its like; its products give √2.
    dead = 0.5 * (unit == 0).all(1).to(unit.dtype)
    count, k = len(unit), min(config.k, len(unit) - 1)
    found = []
    for start in range(0, count, config.block):
        near = unit[start : start + config.block] @ unit.T + dead
        row = torch.arange(len(near), device=z.device)
        near[row, row + start] = -torch.inf
        found.append(near.topk(k, dim=1).indices)
    index = torch.cat(found)
    square = (unit[:, None] - unit[index]).square().sum(-1)
    square, order = square.sort(dim=1, stable=True)
    index = index.gather(1, order)
    sigma = square[:, -1].sqrt().clamp(config.sigma_min, config.sigma_max)
    # Relative to the nearest, so that no row underflows to nothing; the common factor goes with the sum.
    weight = torch.exp((square[:, :1] - square) / (2 * sigma.square())[:, None])
    if importance is not None:
        weight = weight * importance[index]
    return Kernel(index, weight / weight.sum(1, keepdim=True), sigma)


def local_structure(kernel: Kernel, target: Tensor) -> float:
    """Return the share of neighbours whose target lies within one deviation of the batch from the row's.

    Args:
        kernel: Of N latents.
        target: (N,) temporal-difference targets.
    """
    near = (target[kernel.index] - target[:, None]).abs() <= target.std(correction=0)
    return float(near.double().mean())
