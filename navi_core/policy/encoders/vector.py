"""Encoder of plain vectors, for tasks that show some numbers instead of a panorama."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["VectorEncoder"]


class VectorEncoder(nn.Module):
    """Two tanh layers, n-width-width, orthogonal with gain √2.

    Args:
        inputs: Numbers n of an observation.
        width: Embedding width D.
        scale: Divides each number; empty for 1.
    """

    scale: Tensor

    def __init__(self, inputs: int, width: int, scale: tuple[float, ...] = ()) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale or (1.0,) * inputs), persistent=False)
        first, second = nn.Linear(inputs, width), nn.Linear(width, width)
        for layer in (first, second):
            nn.init.orthogonal_(layer.weight, math.sqrt(2))
            nn.init.zeros_(layer.bias)
        self.layers = nn.Sequential(first, nn.Tanh(), second, nn.Tanh())

    def forward(self, obs: Tensor) -> Tensor:
        """Return embeddings (B, D) of observations (B, n)."""
        return self.layers(obs / self.scale)
