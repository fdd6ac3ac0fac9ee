"""Studies of flight are made on the corpus: its training scenes become part of the study."""

from __future__ import annotations

from collections.abc import Sequence

from navi_core.config import StudyConfig
from navi_core.errors import RunError
from navi_core.presets import merge
from navi_pipeline.lib.records.documents import content_key

__all__ = ["over_scenes"]


def over_scenes(config: StudyConfig, scenes: Sequence[str]) -> StudyConfig:
    """Return a study on these scenes; other scenes are another study, so its name tells them apart.

    Raises:
        RunError: There is no scene.
    """
    if not scenes:
        raise RunError("the corpus has no training scene; materialize scene_sources with train above 0")
    settings = merge(config.settings, {"corpus": {"scenes": list(scenes)}})
    name = f"{config.name}-{content_key(sorted(scenes))[:6]}"
    return config.model_copy(update={"settings": settings, "name": name})
