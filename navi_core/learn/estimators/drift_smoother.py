"""Drift smoothing: kernel averaging of values or latents over nearest neighbours in latent space.

Δh = α_step · Δt · (G − h) + noise, each row's norm at most τ, with G the neighbours' mean and Δt = d^(−dim_exponent).
The step size decays to 0 on its schedule. A gate skips the update while uncertainty is low.

Latents are normalised to the unit sphere, where ‖a − b‖² = 2 − 2a·b. Neighbours are found by these products, block by
block. Distances are then computed from differences, because products lose digits where two latents nearly coincide.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from navi_core.config import SmoothingConfig
from navi_core.errors import ConfigError
from navi_core.learn.estimators.noise import normals
from navi_core.learn.events import CALLABLES, SmoothingDecision


@dataclass(frozen=True)
class Kernel:
    """Kernel matrix of N latents, sparse: weights of each row's k nearest neighbours.

    Attributes:
        index: (N, k) int64 neighbours, nearest first; never the row itself.
        weight: (N, k), rows sum to 1.
        sigma: (N,) kernel bandwidths σ.
    """

    index: Tensor
    weight: Tensor
    sigma: Tensor

    def mean(self, h: Tensor) -> Tensor:
        """Return the kernel-weighted neighbour means G (N, F) of h (N, F)."""
        return (self.weight[..., None] * h[self.index]).sum(1)


@CALLABLES.register("compute_knn_kernel")
def compute_knn_kernel(z: Tensor, config: SmoothingConfig, importance: Tensor | None = None) -> Kernel:
    """Compute the k-NN Gaussian kernel of latents: exp(−‖z_i − z_j‖² / 2σ_i²), σ_i the distance to the k-th.

    Args:
        z: (N, d) latents, N at least 2.
        config: k, bounds of σ, and block size in rows.
        importance: (N,) weights of the neighbours, or None.

    Raises:
        ConfigError: Fewer than two latents, or not (N, d).
    """
    if z.ndim != 2 or len(z) < 2:
        raise ConfigError(f"latents of shape {tuple(z.shape)}; a kernel needs (N, d) with N of at least 2")
    unit = torch.nn.functional.normalize(z.detach(), dim=1)
    # An all-zero latent has distance 1 to every other and 0 to another zero; its products would give √2.
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
    """Return the fraction of neighbour pairs whose targets differ by at most one standard deviation of the batch.

    Args:
        kernel: Kernel of N latents.
        target: (N,) temporal-difference targets.
    """
    near = (target[kernel.index] - target[:, None]).abs() <= target.std(correction=0)
    return float(near.double().mean())


_NAN = float("nan")


def alpha_step_at(config: SmoothingConfig, step: int) -> float:
    """Return the scheduled step size α_step: cosine (.15 → .075 halfway → 0 by default), linear or constant."""
    if config.alpha_step_schedule == "constant":
        return config.alpha_step_init
    share = min(max(step, 0) / config.alpha_step_decay_steps, 1.0)
    left = 1.0 - share if config.alpha_step_schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * share))
    return config.alpha_step_init * left


def free_energy(h: Tensor, delta: Tensor, kernel: Tensor, temperature: float = 1.0) -> Tensor:
    """Compute the free energy F = U − T·S with U = ½ Σ ‖h − δ‖² and S = −Σ p log p.

    Args:
        h: (N,) or (N, F) smoothed values.
        delta: Reference values δ of the same shape: the neighbours' mean, or the values before smoothing.
        kernel: (N, k) kernel rows p, each summing to 1.
        temperature: T.

    Returns:
        A scalar; gradients flow through `h`.
    """
    out: Tensor = 0.5 * (h - delta).square().sum() - temperature * torch.special.entr(kernel).sum()
    return out


@CALLABLES.register("apply_consensus_update")
def apply_consensus_update(
    h: Tensor, kernel: Kernel, rate: float, tau: float, noise: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Apply one smoothing step: move rows toward their neighbours' mean, clipped to a trust region.

    Args:
        h: (N, F) values.
        kernel: Kernel of N latents.
        rate: Step size α_step · Δt.
        tau: Trust-region bound τ of a row's step norm.
        noise: (N, F) added to the steps, or None.

    Returns:
        h + Δh, and the norms (N,) of the steps before they were clipped.
    """
    step = rate * (kernel.mean(h) - h)
    if noise is not None:
        step = step + noise
    norm = torch.linalg.vector_norm(step, dim=1)
    return h + step * (tau / norm.clamp_min(tau))[:, None], norm.detach()


class DriftSmoother:
    """Drift smoother: moves N rows toward the kernel means of their nearest neighbours.

    Invariants without noise and scale preservation: α_step 0 is the identity, a constant stays what it is, rows of the
    kernel sum to 1, a permutation of the rows permutes the result, and no value leaves the range of its row and its
    neighbours (for α_step · Δt up to 1).

    Args:
        config: Settings; adaptation may replace them between calls.
        seed: Seed of the noise.
    """

    def __init__(self, config: SmoothingConfig, seed: int = 0) -> None:
        self.config, self.seed = config, seed
        self.kernel: Kernel | None = None
        """Kernel of the last call that computed one; None before."""

    # Longer than 60 lines: a third of them document the arguments.
    def __call__(
        self,
        h: Tensor,
        z: Tensor,
        step: int = 0,
        *,
        td_var: float | None = None,
        disagreement: float | None = None,
        importance: Tensor | None = None,
        draw: int = 0,
    ) -> tuple[Tensor, SmoothingDecision]:
        """Apply the configured smoothing iterations to values h, unless the schedule or the gate skips them.

        Args:
            h: (N,) or (N, F) values; gradients flow through, the kernel is constant.
            z: (N, d) latents.
            step: Training steps so far, for the step-size schedule.
            td_var: Variance of the temporal differences, for the gate; None takes the variance of `h`.
            disagreement: Disagreement for the gate; None takes the mean distance of a row from its neighbours' mean.
            importance: (N,) importance weights, used with `importance_weighted`.
            draw: Number of the application, part of the noise seed.

        Returns:
            Smoothed values h′ of the same shape, and the record of the smoothing decision.

        Raises:
            ConfigError: Shapes do not fit.
        """
        if h.ndim not in (1, 2) or z.ndim != 2 or len(h) != len(z):
            raise ConfigError(
                f"h of shape {tuple(h.shape)} and z of shape {tuple(z.shape)}; needs (N,) or (N, F), (N, d)"
            )
        config, alpha = self.config, alpha_step_at(self.config, step)
        if len(h) < 2 or alpha == 0.0:
            return h, SmoothingDecision(False, 0.0, 0.0, False, _NAN, (_NAN, _NAN, _NAN))
        flat = h[:, None] if h.ndim == 1 else h
        kernel = compute_knn_kernel(z, config, importance if config.importance_weighted else None)
        self.kernel = kernel
        sigma = (float(kernel.sigma.min()), float(kernel.sigma.mean()), float(kernel.sigma.max()))
        with torch.no_grad():
            apart = torch.linalg.vector_norm(kernel.mean(flat) - flat, dim=1).mean()
            seen = float(apart) if disagreement is None else disagreement
            spread = float(flat.var(0, correction=0).mean()) if td_var is None else td_var
        if config.gate_by_td_variance and not (spread > config.td_var_min or seen > config.disagreement_min):
            return h, SmoothingDecision(False, 0.0, 0.0, True, _NAN, sigma, disagreement=float(apart))
        d = flat.shape[1] if config.dt_dim == "h" else config.latent_dim
        rate, out, clipped = alpha * d**-config.dim_exponent, flat, torch.zeros(len(flat), device=h.device)
        for i in range(config.iterations):
            noise = None
            if config.noise_std > 0:
                noise = config.noise_std * normals(self.seed, out.shape, step, i, draw, device=h.device).to(out.dtype)
            out, norm = apply_consensus_update(out, kernel, rate, config.trust_region_tau, noise)
            clipped = torch.maximum(clipped, (norm > config.trust_region_tau).to(clipped.dtype))
        if config.scale_preservation:
            out = _with_scale_of(flat, out)
        with torch.no_grad():
            moved = torch.linalg.vector_norm(out - flat, dim=1).mean()
            energy = free_energy(out, kernel.mean(out), kernel.weight, config.temperature)
        decision = SmoothingDecision(
            True, alpha, float(clipped.mean()), False, float(energy), sigma, float(moved), float(apart)
        )
        return (out[:, 0] if h.ndim == 1 else out), decision


def _with_scale_of(before: Tensor, after: Tensor) -> Tensor:
    """Rescale every feature of `after` to the mean and standard deviation of `before`."""
    spread = after.std(0, correction=0)
    ratio = torch.where(spread > 1e-12, before.std(0, correction=0) / spread.clamp_min(1e-12), 1.0)
    return before.mean(0) + (after - after.mean(0)) * ratio
