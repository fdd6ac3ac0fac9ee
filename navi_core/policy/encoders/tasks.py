"""Encoders of reference tasks: plain vectors, and stacked pictures."""

import math

import torch
from torch import Tensor, nn

from navi_core.errors import ConfigError


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
        out: Tensor = self.layers(obs / self.scale)
        return out


class PictureEncoder(nn.Module):
    """8x8 stride 4, 4x4 stride 2, 3x3 stride 1, then a layer of D units; ReLU, orthogonal with gain √2.

    Args:
        shape: (C, H, W) of a stack, values 0 … 255.
        width: Embedding width D.
        channels: Of the three convolutions.

    Raises:
        ConfigError: The pictures are smaller than the kernels reach.
    """

    def __init__(self, shape: tuple[int, ...], width: int, channels: tuple[int, int, int] = (32, 64, 64)) -> None:
        super().__init__()
        if len(shape) != 3 or min(shape[1:]) < 36:
            raise ConfigError(f"pictures of shape {shape}; allowed: (C, H, W) with H and W of 36 or more")
        first, second, third = channels
        self.layers = nn.Sequential(
            nn.Conv2d(shape[0], first, 8, 4), nn.ReLU(), nn.Conv2d(first, second, 4, 2), nn.ReLU(),
            nn.Conv2d(second, third, 3, 1), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        with torch.no_grad():
            features = self.layers(torch.zeros(1, *shape)).shape[1]
        self.out = nn.Linear(features, width)
        for layer in (*self.layers, self.out):
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.orthogonal_(layer.weight, math.sqrt(2))
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, obs: Tensor) -> Tensor:
        """Return embeddings (B, D) of pictures (B, C, H, W), bytes or numbers 0 … 255."""
        return torch.relu(self.out(self.layers(obs.float() / 255.0)))
