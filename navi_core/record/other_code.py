"""The run that the same command made with other code: a setting more or less names another folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from navi_core.config import Config

__all__ = ["learned_by_other_code"]


def learned_by_other_code(path: Path, config: Config) -> Path | None:
    """Find the newest checkpoint of a run whose settings differ from these in none that both codes know.

    Args:
        path: Folder of the new run, `<asset>-<partition>-<hash>`.
        config: Its configuration.

    Returns:
        The checkpoint; None where there is no such run, or it has none.
    """
    stem, _, digest = path.name.rpartition("-")
    found: list[Path] = []
    for file in path.parent.glob(f"{stem}-{'[0-9a-f]' * len(digest)}/config.json"):
        if file.parent == path:
            continue
        try:
            then = json.loads(file.read_text())["config"]
            if _agree(then, config):
                found += file.parent.glob("checkpoints/*.pt")
        except (ValueError, KeyError, TypeError, AttributeError, OSError):
            continue  # broken, or gone meanwhile
    return max(found, key=lambda checkpoint: checkpoint.stat().st_mtime, default=None)


def _agree(then: dict[str, Any], now: Config) -> bool:
    """Compare what both know; a setting that is written only where it says something is known to both."""
    told = now.model_dump(mode="json")
    for name, field in type(now).model_fields.items():
        if name not in then and field.exclude_if is None:
            continue
        inner = getattr(now, name)
        if isinstance(inner, Config):
            if not _agree(then[name], inner):
                return False
        elif then.get(name) != told.get(name):
            return False
    return True
