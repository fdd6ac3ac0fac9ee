"""The explorer: a person flies through scenes and records demonstrations."""

from navi_core.service.explorer.flight_journal import FlightLog
from navi_core.service.explorer.session import ExplorerSession, SceneChoice, SceneProgress

__all__ = ["ExplorerSession", "FlightLog", "SceneChoice", "SceneProgress"]
