"""Recorded sessions: recorder, file, replay by episodes."""

from navi_core.service.recordings.episodes import RecordedEpisode, list_episodes, trace_episode
from navi_core.service.recordings.recording import Recorded, Recording, RecordingWriter, record_session

__all__ = [
    "Recorded",
    "RecordedEpisode",
    "Recording",
    "RecordingWriter",
    "list_episodes",
    "record_session",
    "trace_episode",
]
