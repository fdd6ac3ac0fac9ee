"""The explorer: a person flies through scenes and records demonstrations."""

from navi_core.service.explorer.session import ExplorerSession, SceneChoice

__all__ = ["ExplorerSession", "SceneChoice"]
