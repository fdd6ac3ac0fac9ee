"""Recorded sessions: written as they come, played again, and cut into episodes."""

from __future__ import annotations

from navi_core.service.recordings.episodes import RecordedEpisode, list_episodes, trace_episode
from navi_core.service.recordings.file import Recording, RecordingWriter
from navi_core.service.recordings.recorder import Recorded, record_session

__all__ = [
    "Recorded",
    "RecordedEpisode",
    "Recording",
    "RecordingWriter",
    "list_episodes",
    "record_session",
    "trace_episode",
]
