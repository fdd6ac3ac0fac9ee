"""Values that Tab completes: presets, versions, subjects, scenes, runs. Heavy modules are left out, since Tab waits."""

from __future__ import annotations

import json
import os
from pathlib import Path


def presets() -> list[str]:
    """Return the names of the shipped presets."""
    return sorted(file.stem for file in (Path(__file__).parents[1] / "presets").glob("*.yaml"))


def versions() -> list[str]:
    """Return the aliases and versions of the Navi home, the newest first."""
    try:
        registry = json.loads((_home() / "models" / "registry.json").read_text())
        return [*registry["aliases"], *reversed(registry["versions"])]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def subjects(incomplete: str) -> list[str]:
    """Return what can be evaluated: aliases, versions, and pilots."""
    known = versions()
    if any(name.startswith(incomplete) for name in known if incomplete):
        return known
    from navi_core.config import BASELINES

    return [*known, *BASELINES]


def scenes() -> list[str]:
    """Return the families of generated scenes and the splits of the benchmark; files are completed by the shell."""
    from navi_core.scenes.corpus.discovery import BENCHMARK, SPLITS
    from navi_core.scenes.procedural import FAMILIES

    return [*(f"{family}:" for family in sorted(FAMILIES)), *(f"{BENCHMARK}:{split}" for split in SPLITS)]


def runs() -> list[str]:
    """Return the run folders of the Navi home."""
    return sorted(file.parent.name for file in (_home() / "runs").glob("*/config.json"))


def _home() -> Path:
    return Path(os.path.expanduser(os.environ.get("NAVI_HOME") or ".navi"))
