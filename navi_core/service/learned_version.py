"""What was learned in flight becomes a version of the registry, a child of what was served."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from navi_core.models import Registry, record_alias_moves, save_checkpoint
from navi_core.policy import NavigationPolicy
from navi_core.service.served_model import ServedModel

__all__ = ["keep_learned"]


def keep_learned(
    registry: Registry, served: ServedModel, policy: NavigationPolicy, run_id: str, decisions: int
) -> str | None:
    """Register weights that were learned in flight; returns their version, None where a program was served.

    No alias moves but `latest` where there is none: what was learned in one place is promoted by evaluation.

    Args:
        registry: Where.
        served: What the learning began with.
        policy: The weights.
        run_id: Name of this life of the service.
        decisions: Flown since.

    Raises:
        CheckpointError: It cannot be written.
        RegistryError: It cannot be registered.
    """
    before = served.checkpoint
    if before is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = save_checkpoint(
            Path(folder) / "learned.pt",
            policy=policy,
            optimizer=None,
            config=before.train_config(),
            step_id=before.step_id + decisions,
            episode_count=before.episode_count,
            reward_ema=math.nan,
            run_id=run_id,
            wall_time_hours=before.wall_time_hours,
            parent_checkpoint=served.path,
            training_source="inference",
            rnd=before.curiosity() or None,
            normalisers=before.normalisers,
            corpus_summary=before.corpus_summary,
            scene_hashes=before.scene_hashes,
        )
        parents = [entry.version for entry in registry.list() if entry.weights_hash == before.weights_hash][:1]
        notes = f"learned in {decisions:,} decisions of flight with {served.name}"
        version = registry.register(file, parents=parents, notes=notes, tags=("inference",))
    record_alias_moves(registry)
    return version
