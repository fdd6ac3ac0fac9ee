"""Observation preprocessing: scales raw sensor channels (depth, semantic id, validity) to network inputs.

The environment's tensor holds normalised log depth, raw corpus-wide semantic ids and a validity mask. Indoors the depth
channel spans only about .03 to .47, so a fixed affine transform spreads it. Semantic ids are scaled only here.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from navi_core.errors import ConfigError

SEMANTIC_SCALE = 255.0
"""Bound and divisor of semantic ids in the network input."""


def known_rays(obs: Tensor) -> Tensor:
    """Return the (B, …) bool mask of the rays of observations (B, 3, …) that were measured.

    A ray that was not measured has depth 0 and is not valid; a measured one that met nothing has its range as depth.
    """
    return (obs[:, 0] > 0) | (obs[:, 2] > 0)


class ObservationScaling(nn.Module):
    """Fixed channel scaling of observations in front of every encoder; no parameters.

    depth → (depth − shift) / scale, semantic id → min(id, 255) / 255, valid → valid; with `known` a fourth channel is 1
    for rays that were measured, 0 for unknown ones (`world.sensor.profiles`).

    Args:
        azimuth_bins: Azimuth bins Az of the observation.
        elevation_bins: Elevation bins El of the observation.
        shift: Subtracted from the depth channel.
        scale: Divides the shifted depth channel.
        known: Add the channel of measured rays.

    Raises:
        ConfigError: A bin count is below one, or the scale is not above zero.
    """

    def __init__(
        self, azimuth_bins: int, elevation_bins: int, shift: float = 0.2, scale: float = 0.1, *, known: bool = False
    ) -> None:
        super().__init__()
        if azimuth_bins < 1 or elevation_bins < 1:
            raise ConfigError(f"azimuth_bins {azimuth_bins} and elevation_bins {elevation_bins} must be at least 1")
        if scale <= 0:
            raise ConfigError(f"depth_scale {scale} must be above 0")
        self.azimuth_bins = azimuth_bins
        self.elevation_bins = elevation_bins
        self.shift = float(shift)
        self.scale = float(scale)
        self.channels = 3 + known

    def forward(self, obs: Tensor) -> Tensor:
        """Scale a batch of raw observations, channel by channel, to network inputs.

        Args:
            obs: Raw observations (B, 3, Az, El): depth, semantic id, valid.

        Returns:
            Scaled float32 observations (B, channels, Az, El); `obs` is left as it is.

        Raises:
            ConfigError: The shape is not (B, 3, Az, El) of this scaling.
        """
        self._check(obs)
        if torch.compiler.is_compiling():
            return self._scaled(obs)
        shape = (obs.shape[0], self.channels, *obs.shape[2:])
        out = torch.empty(shape, dtype=torch.float32, device=obs.device)
        self._write(obs, out)
        return out

    def ring(self, obs: Tensor, before: int = 0, after: int = 0) -> Tensor:
        """Scale observations into the layout of azimuth convolutions, with circular padding.

        Args:
            obs: Raw observations (B, 3, Az, El).
            before: Last azimuth bins repeated in front of bin 0.
            after: First azimuth bins repeated behind the last.

        Returns:
            (B, before + Az + after, channels·El) float32, channels grouped by sensor channel.

        Raises:
            ConfigError: The shape is not (B, 3, Az, El) of this scaling.
        """
        self._check(obs)
        rows, azimuth = obs.shape[0], self.azimuth_bins
        if torch.compiler.is_compiling():
            plain = self._scaled(obs).transpose(1, 2).flatten(2)
            return torch.cat((plain[:, azimuth - before :], plain, plain[:, :after]), dim=1)
        shape = (rows, before + azimuth + after, self.channels, self.elevation_bins)
        out = torch.empty(shape, dtype=torch.float32, device=obs.device)
        # Scaling, transposing and wrapping in one pass: one read and one write of the batch.
        self._write(obs, out[:, before : before + azimuth].transpose(1, 2))
        if before:
            out[:, :before] = out[:, azimuth : azimuth + before]
        if after:
            out[:, before + azimuth :] = out[:, before : before + after]
        return out.flatten(2)

    def patches(self, obs: Tensor, patch: int) -> Tensor:
        """Scale observations into flattened square patches (patchify), with an empty row in front for the CLS token.

        Args:
            obs: Raw observations (B, 3, Az, El).
            patch: Patch edge, a divisor of both axes.

        Returns:
            (B, 1 + patches, channels·patch²) float32: row 0 is zero, patch (a, e) is row 1 + a·(El/patch) + e,
            its numbers ordered as a convolution's weights: channel, azimuth, elevation.

        Raises:
            ConfigError: The shape is not (B, 3, Az, El) of this scaling.
        """
        self._check(obs)
        across, down = self.azimuth_bins // patch, self.elevation_bins // patch
        if torch.compiler.is_compiling():
            tiles = self._scaled(obs).view(-1, self.channels, across, patch, down, patch).permute(0, 2, 4, 1, 3, 5)
            return F.pad(tiles.flatten(3).flatten(1, 2), (0, 0, 1, 0))
        shape = (obs.shape[0], 1 + across * down, self.channels * patch * patch)
        out = torch.empty(shape, dtype=torch.float32, device=obs.device)
        out[:, 0].zero_()
        tiles = out[:, 1:].unflatten(2, (self.channels, patch, patch)).unflatten(1, (across, down))
        self._write(
            obs.unflatten(3, (down, patch)).unflatten(2, (across, patch)),
            tiles.permute(0, 3, 1, 4, 2, 5),
        )
        return out

    def _scaled(self, obs: Tensor) -> Tensor:
        """Scale the channels out of place, the `torch.compile` form of `_write`.

        A compiler fuses the temporaries away and cannot write through views with `out=`. Other runtimes would copy the
        whole tensor for each write.
        """
        semantic = torch.clamp(obs[:, 1], max=SEMANTIC_SCALE).div(SEMANTIC_SCALE)
        channels = [torch.sub(obs[:, 0], self.shift).div(self.scale), semantic, obs[:, 2]]
        if self.channels > 3:
            channels.append(known_rays(obs).to(torch.float32))
        return torch.stack(channels, dim=1)

    def _write(self, obs: Tensor, out: Tensor) -> None:
        torch.sub(obs[:, 0], self.shift, out=out[:, 0]).div_(self.scale)
        torch.clamp(obs[:, 1], max=SEMANTIC_SCALE, out=out[:, 1]).div_(SEMANTIC_SCALE)
        out[:, 2].copy_(obs[:, 2])
        if self.channels > 3:
            out[:, 3].copy_(known_rays(obs))

    def _check(self, obs: Tensor) -> None:
        azimuth, elevation = self.azimuth_bins, self.elevation_bins
        if obs.ndim != 4 or obs.shape[1:] != (3, azimuth, elevation):
            raise ConfigError(f"observation shape {tuple(obs.shape)} is not (B, 3, {azimuth}, {elevation})")
