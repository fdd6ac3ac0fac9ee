"""Settings of the wire: limits, queues, heartbeats and the default endpoints."""

from __future__ import annotations

from pydantic import Field

from navi_core.config.base import Config

__all__ = ["ACTION_ENDPOINT", "OBSERVATION_ENDPOINT", "STEP_ENDPOINT", "WireConfig"]

OBSERVATION_ENDPOINT = "tcp://127.0.0.1:5559"
"""Where an environment publishes `distance_matrix_v2`."""
STEP_ENDPOINT = "tcp://127.0.0.1:5560"
"""Where an environment answers `step_request_v2`."""
ACTION_ENDPOINT = "tcp://127.0.0.1:5557"
"""Where an actor publishes `action_v2` and `telemetry_event_v2`."""


class WireConfig(Config):
    """Limits and queues of every socket."""

    max_message_bytes: int = Field(64 * 2**20, ge=1024, le=2**31)
    """A longer frame is refused, and its sender's connection closed [bytes]."""
    queue_length: int = Field(50, ge=1, le=10_000)
    """Messages that wait for one slow reader; later ones are dropped for it alone."""
    heartbeat_seconds: float = Field(1.0, gt=0, le=60)
    """An idle server repeats its last observation and says that it lives this often [s]."""
    peer_timeout_seconds: float = Field(5.0, gt=0, le=600)
    """A peer that is silent for so long counts as gone; requests are sent again [s]."""
    observation_hz: float = Field(10.0, gt=0, le=1000)
    """Observations a second that a viewer gets of one selected row [Hz]."""
