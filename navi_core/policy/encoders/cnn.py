"""Convolutional encoders: ring CNN and spherical CNN for panoramas; image and vector encoders of reference tasks.

**Ring CNN**: 1-D convolutions around the azimuth circle, elevation bins as channels. The encoder of the CPU presets.
Azimuth wraps, so every convolution pads circularly. Elevation does not, so its bins (times three sensor channels) are
input channels. The last feature ring is flattened, not averaged, to keep the direction of features.

**Spherical CNN**: two-dimensional convolutions over (azimuth, elevation), averaged over the whole sphere. The source
system's convolutional encoder, layer by layer. Azimuth wraps, elevation is padded with zeros. Each stage ends in
GroupNorm, whose statistics are per observation, so a row does not depend on its batch. Global average pooling discards
direction: the embedding is invariant to rotations by the total stride (8 azimuth bins). Use rayvit or ring_cnn for
tasks that need headings.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from navi_core.errors import ConfigError
from navi_core.policy.observation import ObservationScaling


def repeats(kernel: int, stride: int) -> tuple[int, int]:
    """Return the circular padding of a convolution: bins repeated before the first and behind the last.

    Output bin i is centred on input bin stride·i, so rolling the input by `stride` bins rolls the output by one
    (equivariance) if stride divides the number of bins. With stride 2 the last window ends a bin earlier, so one bin
    less is repeated.
    """
    before = kernel // 2
    return before, kernel - before - stride


def wrap(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    """Pad `x` circularly along `dim`: its last `before` entries in front, its first `after` behind."""
    parts = [x.narrow(dim, x.shape[dim] - before, before), x]
    if after:
        parts.append(x.narrow(dim, 0, after))
    return torch.cat(parts, dim=dim)


STEM_CHANNELS = 48
CHANNELS = 112
RING_BINS = 16
"""Target size of the feature ring [azimuth bins]: stride-2 stages are stacked until it is at most this."""


class RingConv(nn.Module):
    """Circular 1-D convolution over azimuth (see `wrap`), followed by ReLU."""

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
        """Convolve a circularly padded ring (B, before + L + after, C)."""
        y = self.conv(wrapped[:, None].permute(0, 3, 1, 2))
        return F.relu(y, inplace=True).permute(0, 2, 3, 1).squeeze(1)


class RingCNN(nn.Module):
    """Ring CNN encoder: (B, 3, Az, El) observations to (B, D) embeddings; 257,568 parameters at 64x16, D 128.

    Args:
        azimuth_bins: Az, a multiple of 8.
        elevation_bins: El.
        width: Embedding width D.
        depth_shift: See `ObservationScaling`.
        depth_scale: See `ObservationScaling`.
        known_channel: See `ObservationScaling`.

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
        known_channel: bool = False,
    ) -> None:
        super().__init__()
        if azimuth_bins % 8:
            raise ConfigError(f"azimuth_bins {azimuth_bins} is not a multiple of 8 (encoder ring_cnn)")
        self.scaling = ObservationScaling(azimuth_bins, elevation_bins, depth_shift, depth_scale, known=known_channel)
        self.stem = RingConv(self.scaling.channels * elevation_bins, STEM_CHANNELS, kernel=5, stride=2)
        stages: list[nn.Module] = []
        ring, channels = azimuth_bins // 2, STEM_CHANNELS
        while ring > RING_BINS and ring % 2 == 0:
            stages.append(RingConv(channels, CHANNELS, kernel=3, stride=2))
            ring, channels = ring // 2, CHANNELS
        if not stages:
            stages.append(RingConv(channels, CHANNELS, kernel=3, stride=1))
            channels = CHANNELS
        self.stages: Callable[[Tensor], Tensor] = nn.Sequential(*stages)
        self.project = nn.Linear(ring * channels, width)
        self.norm: Callable[[Tensor], Tensor] = nn.LayerNorm(width)

    def forward(self, obs: Tensor) -> Tensor:
        """Encode raw observations (B, 3, Az, El) to embeddings (B, D)."""
        features = self.features(obs)
        return self.norm(self.project(features.flatten(1)))

    def features(self, obs: Tensor) -> Tensor:
        """Compute the last feature ring (B, bins, C) of raw observations (B, 3, Az, El)."""
        wrapped = self.scaling.ring(obs, self.stem.before, self.stem.after)
        return self.stages(self.stem.convolve(wrapped))


AZIMUTH_STRIDE = 8
"""Azimuth bins per feature column: the product of the strides."""
GROUPS = 8


class CircularAzimuthConv2d(nn.Conv2d):
    """3 × 3 convolution of (B, C, Az, El) that wraps in azimuth (see `wrap`) and pads elevation with zeros.

    Args:
        inputs: Input channels.
        outputs: Output channels.
        stride: Strides (azimuth, elevation).
        groups: Groups of channels.
    """

    def __init__(self, inputs: int, outputs: int, *, stride: tuple[int, int] = (1, 1), groups: int = 1) -> None:
        super().__init__(inputs, outputs, 3, stride=stride, padding=(0, 1), groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve (B, C, Az, El) to (B, C', Az / stride, ⌈El / stride⌉)."""
        return super().forward(wrap(x, 2, *repeats(3, self.stride[0])))


class Stage(nn.Module):
    """CNN stage: convolutions, affine GroupNorm, ReLU."""

    def __init__(self, *convolutions: nn.Conv2d) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(*convolutions)
        self.norm = nn.GroupNorm(GROUPS, convolutions[-1].out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the stage to feature maps (B, C, Az, El)."""
        return F.relu(self.norm(self.convolutions(x)), inplace=True)


def _separable(inputs: int, outputs: int, stride: tuple[int, int]) -> Stage:
    """Build a depthwise-separable stage: depthwise 3 × 3 convolution, then pointwise."""
    depthwise = CircularAzimuthConv2d(inputs, inputs, stride=stride, groups=inputs)
    return Stage(depthwise, nn.Conv2d(inputs, outputs, 1))


class SphericalCNN(nn.Module):
    """Spherical CNN encoder: (B, 3, Az, El) observations to (B, D) embeddings; 226,752 parameters at D 128.

    Args:
        azimuth_bins: Az, a multiple of 8.
        elevation_bins: El.
        width: Embedding width D.
        separable_refinement: Make the last stage depthwise and pointwise too; 96,960 parameters and
            about a quarter of the operations.
        depth_shift: See `ObservationScaling`.
        depth_scale: See `ObservationScaling`.
        known_channel: See `ObservationScaling`.

    Raises:
        ConfigError: Az is not a multiple of 8.
    """

    def __init__(
        self,
        azimuth_bins: int,
        elevation_bins: int,
        *,
        width: int = 128,
        separable_refinement: bool = False,
        depth_shift: float = 0.2,
        depth_scale: float = 0.1,
        known_channel: bool = False,
    ) -> None:
        super().__init__()
        if azimuth_bins % AZIMUTH_STRIDE:
            raise ConfigError(
                f"azimuth_bins {azimuth_bins} is not a multiple of {AZIMUTH_STRIDE} (encoder spherical_cnn)"
            )
        self.scaling = ObservationScaling(azimuth_bins, elevation_bins, depth_shift, depth_scale, known=known_channel)
        last = _separable(128, 128, (1, 1)) if separable_refinement else Stage(CircularAzimuthConv2d(128, 128))
        self.stages: Callable[[Tensor], Tensor] = nn.Sequential(
            Stage(CircularAzimuthConv2d(self.scaling.channels, 32, stride=(2, 1))),
            _separable(32, 64, (2, 2)),
            _separable(64, 128, (2, 2)),
            last,
        )
        self.head = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, width))
        self.norm: Callable[[Tensor], Tensor] = nn.LayerNorm(width)

    def forward(self, obs: Tensor) -> Tensor:
        """Encode raw observations (B, 3, Az, El) to embeddings (B, D)."""
        return self.norm(self.head(self.features(obs).mean(dim=(2, 3))))

    def features(self, obs: Tensor) -> Tensor:
        """Compute the last feature map (B, 128, Az / 8, ⌈El / 4⌉) of raw observations (B, 3, Az, El)."""
        return self.stages(self.scaling(obs))


class VectorEncoder(nn.Module):
    """MLP encoder of vector observations: two tanh layers, n → D → D, orthogonal initialisation with gain √2.

    Args:
        inputs: Observation size n.
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
        self.layers: Callable[[Tensor], Tensor] = nn.Sequential(first, nn.Tanh(), second, nn.Tanh())

    def forward(self, obs: Tensor) -> Tensor:
        """Encode observations (B, n) to embeddings (B, D)."""
        return self.layers(obs / self.scale)


class PictureEncoder(nn.Module):
    """Image encoder (Nature CNN): convolutions 8x8/4, 4x4/2, 3x3/1, a layer of D units; ReLU, orthogonal gain √2.

    Args:
        shape: (C, H, W) of a frame stack, values 0 … 255.
        width: Embedding width D.
        channels: Output channels of the three convolutions.

    Raises:
        ConfigError: The images are smaller than the kernels' receptive field.
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
            if isinstance(layer, nn.Conv2d):  # few channels are faster with the channels innermost
                layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)

    def forward(self, obs: Tensor) -> Tensor:
        """Encode images (B, C, H, W), bytes or numbers 0 … 255, to embeddings (B, D)."""
        # A copy, divided in place: a second allocation of this size costs as much as a convolution.
        shades = obs.to(torch.float32, copy=True, memory_format=torch.channels_last).div_(255.0)
        return torch.relu(self.out(self.layers(shades)))
