"""A run's checkpoint as every run loop keeps it: written, told to the warehouse, older ones pruned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from navi_core.config import TrainConfig
from navi_core.learn.run.records import RunRecord
from navi_core.learn.run.result import Counters
from navi_core.learn.run.resume import prune_checkpoints
from navi_core.models import save_checkpoint
from navi_core.record import RunDirectory

__all__ = ["keep_checkpoint"]


def keep_checkpoint(
    path: Path,
    *,
    run: RunDirectory,
    record: RunRecord,
    config: TrainConfig,
    policy: Any,
    optimizer: torch.optim.Optimizer,
    counters: Counters,
    steps: int,
    parent: str | None,
    rnd: dict[str, Any],
    normalisers: dict[str, Any],
    scene_hashes: dict[str, str],
    corpus_summary: dict[str, Any],
    extra: dict[str, Any],
) -> str:
    """Write a checkpoint of a run with its row, and prune those before it.

    Args:
        path: The file.
        run: The run's directory.
        record: Where its rows go.
        config: Its configuration.
        policy: The policy.
        optimizer: Its optimiser.
        counters: What the run has counted; kept in `extra`, too.
        steps: Decisions learned from.
        parent: The checkpoint that this one went on from.
        rnd: State of curiosity.
        normalisers: State of the learner.
        scene_hashes: Content hash by scene.
        corpus_summary: What the scenes were.
        extra: What this kind of run keeps besides.

    Returns:
        The parent of the next one.
    """
    save_checkpoint(
        path,
        policy=policy,
        optimizer=optimizer,
        config=config,
        step_id=steps,
        episode_count=counters.episodes,
        reward_ema=counters.reward_ema,
        run_id=run.run_id,
        parent_checkpoint=parent,
        training_source="rl",
        wall_time_hours=counters.seconds / 3600.0,
        rnd=rnd,
        normalisers=normalisers,
        scene_hashes=scene_hashes,
        corpus_summary=corpus_summary,
        extra=extra | {"counters": counters.kept()},
    )
    prune_checkpoints(run.checkpoints, config.keep_checkpoints)
    record.checkpoint(
        path,
        step=steps,
        reward_ema=counters.reward_ema,
        episodes=counters.episodes,
        parent=parent,
        seconds=counters.seconds,
    )
    return str(path)
