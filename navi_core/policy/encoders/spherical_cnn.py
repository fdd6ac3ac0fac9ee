"""Spherical CNN: two-dimensional convolutions over (azimuth, elevation), averaged over the whole sphere.

The source system's convolutional encoder, layer by layer. Azimuth wraps, elevation is padded with
zeros. Each stage ends in GroupNorm, whose statistics are one observation's own, so a row does not
depend on its batch. The global average knows *what* is around, not *where*: turning by the total
stride (8 azimuth bins) leaves the embedding as it is. A task that needs headings wants rayvit or
ring_cnn.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from navi_core.errors import ConfigError
from navi_core.policy.encoders.ring_cnn import repeats, wrap
from navi_core.policy.observation import ObservationScaling

AZIMUTH_STRIDE = 8
"""Azimuth bins of one feature column: the product of the strides."""
GROUPS = 8


class CircularAzimuthConv2d(nn.Conv2d):
    """3 × 3 convolution of (B, C, Az, El) that wraps in azimuth (see `circle`) and pads elevation with zeros.

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
    """Convolutions, affine GroupNorm, ReLU."""

    def __init__(self, *convolutions: nn.Conv2d) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(*convolutions)
        self.norm = nn.GroupNorm(GROUPS, convolutions[-1].out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Transform (B, C, Az, El)."""
        return F.relu(self.norm(self.convolutions(x)), inplace=True)


def _separable(inputs: int, outputs: int, stride: tuple[int, int]) -> Stage:
    """A depthwise 3 × 3 convolution and a pointwise one."""
    depthwise = CircularAzimuthConv2d(inputs, inputs, stride=stride, groups=inputs)
    return Stage(depthwise, nn.Conv2d(inputs, outputs, 1))


class SphericalCNN(nn.Module):
    """(B, 3, Az, El) observations to (B, D) embeddings; 226,752 parameters at D 128.

    Args:
        azimuth_bins: Az, a multiple of 8.
        elevation_bins: El.
        width: Embedding width D.
        separable_refinement: Make the last stage depthwise and pointwise too; 96,960 parameters and
            about a quarter of the operations.
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
        separable_refinement: bool = False,
        depth_shift: float = 0.2,
        depth_scale: float = 0.1,
    ) -> None:
        super().__init__()
        if azimuth_bins % AZIMUTH_STRIDE:
            raise ConfigError(
                f"azimuth_bins {azimuth_bins} is not a multiple of {AZIMUTH_STRIDE} (encoder spherical_cnn)"
            )
        self.scaling = ObservationScaling(azimuth_bins, elevation_bins, depth_shift, depth_scale)
        last = _separable(128, 128, (1, 1)) if separable_refinement else Stage(CircularAzimuthConv2d(128, 128))
        self.stages = nn.Sequential(
            Stage(CircularAzimuthConv2d(3, 32, stride=(2, 1))),
            _separable(32, 64, (2, 2)),
            _separable(64, 128, (2, 2)),
            last,
        )
        self.head = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, obs: Tensor) -> Tensor:
        """Encode raw observations (B, 3, Az, El) to embeddings (B, D)."""
        out: Tensor = self.norm(self.head(self.features(obs).mean(dim=(2, 3))))
        return out

    def features(self, obs: Tensor) -> Tensor:
        """Return the last feature map (B, 128, Az / 8, ⌈El / 4⌉) of raw observations (B, 3, Az, El)."""
        out: Tensor = self.stages(self.scaling(obs))
        return out
