"""Return normalisation: the critic predicts returns in units of their own spread.

Collisions make returns of −60 where seen floor makes +2; a critic in raw units then fills the shared,
clipped gradient and the actor learns nothing. The critic's last layer is rescaled whenever the scale
moves, so that its prediction in raw units stays what it was (PopArt, van Hasselt et al. 2016). The
normalisation is undone before advantages are estimated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from navi_core.learn.parallel import ALONE, Workers

__all__ = ["ValueScale"]

_RATE = 0.2
_LEAST_DEVIATION = 1e-4


class ValueScale:
    """Running mean and deviation of returns, and the critic layer that lives in these units.

    Args:
        layer: Last linear layer of the critic, (…) → 1.
        device: Where the moments are kept.
        workers: Processes whose rows share the scale.
    """

    def __init__(self, layer: nn.Linear, device: torch.device | str = "cpu", workers: Workers = ALONE) -> None:
        self.layer, self._workers = layer, workers
        self.mean = torch.zeros((), dtype=torch.float64, device=device)
        self.square = torch.ones((), dtype=torch.float64, device=device)
        self.updates = 0

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of the returns, a float64 scalar ≥ 1e-4."""
        return (self.square - self.mean.square()).clamp_min(_LEAST_DEVIATION**2).sqrt()

    def to_raw(self, values: Tensor) -> Tensor:
        """Turn predictions into returns; any shape, same dtype."""
        return (values.double() * self.deviation + self.mean).to(values.dtype)

    def to_scaled(self, returns: Tensor) -> Tensor:
        """Turn returns into what the critic predicts; any shape, same dtype."""
        return ((returns.double() - self.mean) / self.deviation).to(returns.dtype)

    @torch.no_grad()
    def follow(self, returns: Tensor) -> None:
        """Move toward the moments of `returns` and rescale the critic's last layer.

        The first call takes the moments over; a later one goes a fifth of the way, because returns
        change as the policy learns.
        """
        mean, deviation = self.mean.clone(), self.deviation
        rate = 1.0 if self.updates == 0 else _RATE
        raw = returns.detach().double()
        self.mean += rate * (self._workers.mean(raw.mean()) - self.mean)
        self.square += rate * (self._workers.mean(raw.square().mean()) - self.square)
        self.updates += 1
        ratio = deviation / self.deviation
        shift = (mean - self.mean) / self.deviation
        dtype = self.layer.weight.dtype
        self.layer.weight.copy_((self.layer.weight.double() * ratio).to(dtype))
        self.layer.bias.copy_((self.layer.bias.double() * ratio + shift).to(dtype))

    @torch.no_grad()
    def dissolve(self) -> None:
        """Give the critic's last layer raw units, so that it can do without this scale."""
        dtype = self.layer.weight.dtype
        self.layer.weight.copy_((self.layer.weight.double() * self.deviation).to(dtype))
        self.layer.bias.copy_((self.layer.bias.double() * self.deviation + self.mean).to(dtype))

    def state_dict(self) -> dict[str, Any]:
        """Return the moments; the layer is part of the policy."""
        return {"mean": self.mean.clone(), "square": self.square.clone(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self.mean.copy_(state["mean"])
        self.square.copy_(state["square"])
        self.updates = int(state["updates"])
