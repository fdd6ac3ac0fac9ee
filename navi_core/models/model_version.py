"""One registered model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["ModelVersion"]


@dataclass(frozen=True)
class ModelVersion:
    """An immutable entry of the registry; only the aliases that point to it change."""

    version: str
    """`v001`, `v002`, …"""
    path: Path
    """The registry's own copy of the checkpoint."""
    parents: tuple[str, ...]
    """Versions it was trained from."""
    run_id: str
    """Run that wrote the checkpoint."""
    step_id: int
    """Decisions it was trained for."""
    episode_count: int
    """Episodes it was trained for."""
    reward_ema: float | None
    """Smoothed shaped reward; None where it was not finite."""
    training_source: str
    """`rl`, `bc` or `inference`."""
    encoder_backend: str
    """Name of the encoder."""
    temporal_core: str
    """Name of the temporal core."""
    decision_hz: float
    """Decisions per second of flight [Hz]."""
    weights_hash: str
    """SHA-256 of the weights."""
    file_hash: str
    """SHA-256 of the checkpoint file."""
    config_hash: str
    """Hash of the run's configuration."""
    code_revision: str | None
    """Git commit of the code that trained it."""
    created_at: str
    """Time of registration, UTC, ISO 8601."""
    metrics: dict[str, float | None]
    """Numbers given at registration."""
    notes: str
    """Free text."""
    tags: tuple[str, ...]
    """Free labels."""
    aliases: tuple[str, ...] = ()
    """Aliases that point here now."""

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as JSON-ready data."""
        return asdict(self) | {
            "path": str(self.path),
            "parents": list(self.parents),
            "tags": list(self.tags),
            "aliases": list(self.aliases),
        }
