"""Viewing: broadcast of a training, discovery of publishers, and the state that viewers show."""

from navi_core.service.viewing.broadcast import TrainingBroadcast, WatchedEnv
from navi_core.service.viewing.digest import Digest
from navi_core.service.viewing.feed import Announcement, Feed, announced

__all__ = ["Announcement", "Digest", "Feed", "TrainingBroadcast", "WatchedEnv", "announced"]
