"""Action distributions of the policy heads: Gaussian, Beta, categorical.

Every distribution is over actions (…, 4) as the environment takes them. It samples by transforming given standard
normal noise (so a draw is a function of seed, row and step), and computes log-density and entropy of the 4-vectors, in
nat.
"""

import abc
import math

import torch
from torch import Tensor
from torch.nn import functional as F

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_AXIS, _DRAW = 0x9E3779B1, 0x85EBCA6B


class ActionDistribution(abc.ABC):
    """Abstract action distribution over actions (…, 4)."""

    @abc.abstractmethod
    def typical(self) -> Tensor:
        """Return the deterministic actions (…, 4): mean or mode."""

    @abc.abstractmethod
    def sample(self, noise: Tensor) -> Tensor:
        """Sample actions (…, 4) by transforming standard normal noise (…, 4); the sample carries no gradient."""

    @abc.abstractmethod
    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log density or log probability (…,) of actions (…, 4) [nat]."""

    @abc.abstractmethod
    def entropy(self) -> Tensor:
        """Return the entropy (…,) [nat]."""


class DiagonalGaussian(ActionDistribution):
    """Diagonal Gaussian N(mean (…, A), diag(exp(log_std (A,)))²); actions are unclamped, the environment clamps."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean, self.log_std = mean, log_std

    def typical(self) -> Tensor:
        """Return the mean (…, A), the deterministic action."""
        return self.mean

    def sample(self, noise: Tensor) -> Tensor:
        """Sample actions as mean + std · noise."""
        return self.mean.detach() + torch.exp(self.log_std.detach()) * noise

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log density (…,) of unclamped actions."""
        z = (actions - self.mean) * torch.exp(-self.log_std)
        return (-0.5 * z * z - self.log_std - _HALF_LOG_TWO_PI).sum(-1)

    def entropy(self) -> Tensor:
        """Return the differential entropy (…,), which does not depend on the mean."""
        return (self.log_std + 0.5 + _HALF_LOG_TWO_PI).sum(-1).expand(self.mean.shape[:-1])


class ScaledBeta(ActionDistribution):
    """Independent Beta(α, β) distributions on (−1, 1) per axis, unimodal by α, β > 1 (Chou et al. 2017).

    A bounded distribution needs no clamping of actions, so no gradient is lost to it.

    Args:
        outputs: Head outputs (…, 2·A): first all of α, then all of β, through softplus + 1.
    """

    _EDGE = 1e-6
    _ATTEMPTS = 8

    def __init__(self, outputs: Tensor) -> None:
        self.alpha, self.beta = (1 + F.softplus(outputs)).chunk(2, dim=-1)

    def typical(self) -> Tensor:
        """Return the mean (…, A), the deterministic action."""
        return 2 * self.alpha / (self.alpha + self.beta) - 1

    def sample(self, noise: Tensor) -> Tensor:
        """Sample actions as ratios of two gamma draws per axis (Marsaglia and Tsang 2000).

        Rejection sampling needs more randomness than one normal, so the bits of the noise seed a counter-based
        hash. All 8 attempts are computed at once and the first accepted one is taken; the probability that all
        are rejected is below 1e-10.
        """
        bits = noise.contiguous().view(torch.int32).to(torch.int64)
        # Axes with equal noise must still differ.
        bits = bits + torch.arange(noise.shape[-1], device=noise.device) * _int32(_AXIS)
        # Detached, not under a decorator: a compiler does not follow those of methods.
        alpha, beta = self.alpha.detach(), self.beta.detach()
        first, second = _gamma(alpha, bits, 0, self._ATTEMPTS), _gamma(beta, bits, 1, self._ATTEMPTS)
        share = (first / (first + second)).clamp(self._EDGE, 1 - self._EDGE)
        return 2 * share - 1

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log density (…,) of actions in (−1, 1); others are clamped to the edge."""
        share = ((actions + 1) / 2).clamp(self._EDGE, 1 - self._EDGE).double()
        alpha, beta = self._precise()
        density = (alpha - 1) * share.log() + (beta - 1) * torch.log1p(-share) - _log_beta(alpha, beta)
        return (density - math.log(2)).sum(-1, dtype=self.alpha.dtype)

    def entropy(self) -> Tensor:
        """Return the differential entropy (…,)."""
        alpha, beta = self._precise()
        total = alpha + beta
        inner = (alpha - 1) * torch.digamma(alpha) + (beta - 1) * torch.digamma(beta)
        each = _log_beta(alpha, beta) - inner + (total - 2) * torch.digamma(total) + math.log(2)
        return each.sum(-1, dtype=self.alpha.dtype)

    def _precise(self) -> tuple[Tensor, Tensor]:
        """Return α and β in double precision, for log density and entropy.

        A confident policy has values in the thousands. The terms of an axis are then as large, but their sum is of the
        order of 1 (cancellation). The sum over the axes casts back by its `dtype`: a separate cast would keep these
        nodes in exported programs, which do not define the log density.
        """
        return self.alpha.double(), self.beta.double()


class Categorical(ActionDistribution):
    """Categorical distribution over discrete actions, the rows of an action table.

    Args:
        logits: Unnormalised log probabilities (…, K).
        table: Actions (K, A), all different.
    """

    def __init__(self, logits: Tensor, table: Tensor) -> None:
        self.log_probs, self.table = logits.log_softmax(-1), table

    def typical(self) -> Tensor:
        """Return the most probable action (…, A)."""
        return self.table[self.log_probs.argmax(-1)]

    def sample(self, noise: Tensor) -> Tensor:
        """Sample by inverse CDF: the action at the quantile of the first axis's noise."""
        quantile = torch.special.ndtr(noise[..., :1].double())
        below = self.log_probs.detach().double().exp().cumsum(-1) <= quantile
        return self.table[below.sum(-1).clamp_max(len(self.table) - 1)]

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log probability (…,) of actions (…, A) of the table."""
        return self.log_probs.gather(-1, table_index(actions, self.table)[..., None]).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return the entropy (…,) [nat]."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)


def table_index(actions: Tensor, table: Tensor) -> Tensor:
    """Quantize actions (…, A) to the index (…,) of the nearest discrete action, by L1 distance in a table (K, A)."""
    return (actions[..., None, :] - table).abs().sum(-1).argmin(-1)


def _log_beta(alpha: Tensor, beta: Tensor) -> Tensor:
    """Return log B(α, β), the log of the beta function."""
    return torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)


def _gamma(shape: Tensor, bits: Tensor, purpose: int, attempts: int) -> Tensor:
    """Sample Gamma(shape, 1), shape ≥ 1, by rejection (Marsaglia and Tsang), with `bits` (int64) as the randomness."""
    d = (shape.double() - 1 / 3)[..., None]
    c = torch.rsqrt(9 * d)
    attempt = torch.arange(attempts, device=bits.device)
    accept, radius, angle = (_uniform(bits[..., None], attempt, 6, 3 * purpose + i) for i in range(3))
    x = torch.sqrt(-2 * radius.log()) * torch.cos(2 * math.pi * angle)
    v = (1 + c * x) ** 3
    good = (v > 0) & (accept.log() < 0.5 * x * x + d - d * v + d * v.clamp_min(1e-300).log())
    first = good.to(torch.int8).argmax(-1, keepdim=True)
    # Where nothing was accepted, the mode: one draw in 1e10 is worth no branch.
    drawn = torch.where(good.any(-1, keepdim=True), (d * v).gather(-1, first), d)
    return drawn.squeeze(-1).clamp_min(1e-30).to(shape.dtype)


def _uniform(bits: Tensor, place: Tensor, step: int, first: int) -> Tensor:
    """Hash bits and a counter (place·step + first) to uniform numbers in (0, 1).

    Two rounds of a 32-bit mixer (Wellons 2018), in int64 to stay exact.
    """
    number = place * step + first
    x = (bits ^ (place * _int32(step * _DRAW) + _int32(first * _DRAW))) & 0xFFFFFFFF
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
        x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
        x = (x ^ (x >> 16)) + number & 0xFFFFFFFF
    return (x.double() + 0.5) / 2**32


def _int32(number: int) -> int:
    """Wrap an integer to the signed 32-bit integer with the same low bits.

    Only the low bits of a product are used, and Triton accepts no larger constant where it multiplies element indices.
    """
    return (number + 2**31) % 2**32 - 2**31
