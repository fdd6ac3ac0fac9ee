"""Ring CNN: 1-D convolutions around the azimuth circle, elevation bins as channels.

The encoder of the CPU presets. Azimuth wraps, so every convolution pads circularly; elevation does
not, so its bins (times three sensor channels) are input channels and nothing is assumed about them.
The last feature ring is flattened, never averaged: *where* something is steers the drone.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from navi_core.errors import ConfigError
from navi_core.policy.observation import ObservationScaling


def repeats(kernel: int, stride: int) -> tuple[int, int]:
    """Return how many bins a circular convolution repeats before the first bin and behind the last.

    Output bin i is centred on input bin stride·i, so rolling the input by `stride` bins rolls the output by one when
    stride divides the number of bins. With stride 2 the last window ends a bin earlier: that bin need not be repeated.
    """
    before = kernel // 2
    return before, kernel - before - stride


def wrap(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    """Return `x` with its last `before` bins along `dim` repeated in front and its first `after` bins behind."""
    parts = [x.narrow(dim, x.shape[dim] - before, before), x]
    if after:
        parts.append(x.narrow(dim, 0, after))
    return torch.cat(parts, dim=dim)


STEM_CHANNELS = 48
CHANNELS = 112
RING_BINS = 16
"""Stride-2 stages are stacked until the feature ring has at most this many azimuth bins."""


class RingConv(nn.Module):
    """Circular 1-D convolution over azimuth (see `circle`), then ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        # A one-row 2-D convolution in channels-last memory is what CPU libraries run fastest; the
        # ring stays (B, bins, C) between the stages and nothing is reordered.
        self.conv = nn.Conv2d(inputs, outputs, (1, kernel), (1, stride))
        self.conv.weight.data = self.conv.weight.data.contiguous(memory_format=torch.channels_last)
        self.before, self.after = repeats(kernel, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve a ring (B, L, C) to (B, L / stride, C')."""
        return self.convolve(wrap(x, 1, self.before, self.after))

    def convolve(self, wrapped: Tensor) -> Tensor:
        """Convolve a ring whose ends are repeated already, (B, before + L + after, C)."""
        y = self.conv(wrapped[:, None].permute(0, 3, 1, 2))
        return F.relu(y, inplace=True).permute(0, 2, 3, 1).squeeze(1)


class RingCNN(nn.Module):
    """(B, 3, Az, El) observations to (B, D) embeddings; 257,568 parameters at 64x16, D 128.

    Args:
        azimuth_bins: Az, a multiple of 8.
        elevation_bins: El.
        width: Embedding width D.
        depth_shift: See `ObservationScaling`.
        depth_scale: See `ObservationScaling`.

    Raises:
        ConfigError: Az is not a multiple of 8.
    """

    def __init__(
        self,
        azimuth_bins: int,
        elevation_bins: int,
        *,
        width: int = 128,
        depth_shift: float = 0.2,
        depth_scale: float = 0.1,
    ) -> None:
        super().__init__()
        if azimuth_bins % 8:
            raise ConfigError(f"azimuth_bins {azimuth_bins} is not a multiple of 8 (encoder ring_cnn)")
        self.scaling = ObservationScaling(azimuth_bins, elevation_bins, depth_shift, depth_scale)
        self.stem = RingConv(3 * elevation_bins, STEM_CHANNELS, kernel=5, stride=2)
        stages: list[nn.Module] = []
        ring, channels = azimuth_bins // 2, STEM_CHANNELS
        while ring > RING_BINS and ring % 2 == 0:
            stages.append(RingConv(channels, CHANNELS, kernel=3, stride=2))
            ring, channels = ring // 2, CHANNELS
        if not stages:
            stages.append(RingConv(channels, CHANNELS, kernel=3, stride=1))
            channels = CHANNELS
        self.stages = nn.Sequential(*stages)
        self.project = nn.Linear(ring * channels, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, obs: Tensor) -> Tensor:
        """Encode raw observations (B, 3, Az, El) to embeddings (B, D)."""
        features = self.features(obs)
        out: Tensor = self.norm(self.project(features.flatten(1)))
        return out

    def features(self, obs: Tensor) -> Tensor:
        """Return the last feature ring (B, bins, C) of raw observations (B, 3, Az, El)."""
        wrapped = self.scaling.ring(obs, self.stem.before, self.stem.after)
        out: Tensor = self.stages(self.stem.convolve(wrapped))
        return out
