"""Custom encoder: means of the elevation bins, and a small network."""

from torch import nn

from navi_core.policy import ObservationScaling, register_encoder


@register_encoder("strips")
class Strips(nn.Module):
    """Panorama reduced to one strip of azimuth bins: (B, 3, Az, El) to (B, width)."""

    def __init__(self, azimuth_bins, elevation_bins, *, width, depth_shift, depth_scale):
        super().__init__()
        self.scaling = ObservationScaling(azimuth_bins, elevation_bins, depth_shift, depth_scale)
        self.layers = nn.Sequential(nn.Linear(3 * azimuth_bins, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, obs):
        """Return the embedding."""
        return self.layers(self.scaling(obs).mean(dim=3).flatten(1))
