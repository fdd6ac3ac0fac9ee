"""Custom pilot: circles, and turns on the spot if a surface is near ahead."""

import torch

from navi_core.pilots import Pilot, register_pilot


@register_pilot("circling")
class Circling(Pilot):
    """Reactive pilot without a memory."""

    def _decide(self, obs):
        """Return actions (B, 4): forward, vertical, lateral, yaw; obs is (B, 3, Az, El)."""
        middle = obs.shape[3] // 2
        near = obs[:, 0, 0, middle] < 0.3  # azimuth 0 is ahead; normalised depth
        turn, circle = torch.tensor([0.0, 0.0, 0.0, 1.0]), torch.tensor([0.5, 0.0, 0.0, 0.2])
        return torch.where(near[:, None], turn, circle)
