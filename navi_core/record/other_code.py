"""The run that the same command made with other code: a setting more or less names another folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from navi_core.config import Config

__all__ = ["learned_by_other_code"]

_BEST = "best.pt"
"""What a clone keeps beside its last steps, and is judged by."""


def learned_by_other_code(path: Path, config: Config) -> Path | None:
    """Find what a run learned last whose settings differ from these in none that both codes know.

    Args:
        path: Folder of the new run, `<asset>-<partition>-<hash>`.
        config: Its configuration.

    Returns:
        The best checkpoint of a clone, else the run's last one; None where there is no such run, or it has none.
    """
    stem, _, digest = path.name.rpartition("-")
    found: list[tuple[float, Path]] = []
    for file in path.parent.glob(f"{stem}-{'[0-9a-f]' * len(digest)}/config.json"):
        if file.parent == path:
            continue
        try:
            if _agree(json.loads(file.read_text())["config"], config):
                # Within a run the steps in the names count, whatever times a copy has given the files.
                kept = sorted(file.parent.glob("checkpoints/*.pt"), key=lambda each: (each.name == _BEST, each.name))
                found += [(each.stat().st_mtime, each) for each in kept[-1:]]
        except (ValueError, KeyError, TypeError, AttributeError, OSError):
            continue  # broken, or gone meanwhile
    return max(found, default=(0.0, None))[1]


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
