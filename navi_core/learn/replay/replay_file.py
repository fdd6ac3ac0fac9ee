"""Replay files: the replay buffer saved beside a checkpoint, kept for the last two checkpoints.

A replay file is never part of a registered version: a checkpoint is copied into the registry and loaded by every
evaluation, and the replay is many times larger and needed only to resume the run. The file is written before its
checkpoint, so a missing file means damage, and the run then reports how many items it lost.
"""

import logging
import zipfile
from pathlib import Path

import torch

from navi_core.errors import CheckpointError
from navi_core.learn.replay.prioritized import PrioritizedReplay
from navi_core.record.durable import durable_file

_LOG = logging.getLogger("navi.learn")
_KEPT = 2
_FILES = "step-*.replay"


def replay_path(checkpoint: Path) -> Path:
    """Return the path of the replay file that belongs to a checkpoint."""
    return checkpoint.with_suffix(".replay")


def save_replay(replay: PrioritizedReplay, checkpoint: Path) -> None:
    """Write the replay buffer to the file beside a checkpoint, before the checkpoint itself is written.

    Raises:
        CheckpointError: The file cannot be written.
    """
    path = replay_path(checkpoint)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The replay may fill most of the memory, so it is written without a copy.
        with durable_file(path) as stream:
            torch.save(replay.state_dict(copy=False), stream)
    except (OSError, RuntimeError) as error:
        # torch's writer raises its own error after that of the stream.
        reason = error if isinstance(error, OSError) else error.__context__
        if not isinstance(reason, OSError):
            raise
        raise CheckpointError(f"{path}: the replay cannot be written: {reason.strerror or reason}") from error


def load_replay(replay: PrioritizedReplay, checkpoint: Path, remembered: int) -> bool:
    """Load the replay buffer from the file beside a checkpoint; stay empty, with a warning, if it is unreadable.

    Without it the run continues from the checkpoint's weights and takes gradient steps again after `learning_starts`
    decisions.

    Args:
        replay: An empty replay.
        checkpoint: The checkpoint.
        remembered: Items ever added to the replay at the time of the checkpoint.

    Returns:
        Whether the replay was restored.
    """
    path = replay_path(checkpoint)
    try:
        if not path.is_file():
            raise CheckpointError("there is no such file")
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"{damaged} does not have the checksum it was saved with")
        # Memory-mapped: the items are copied straight from the file into the buffer.
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if not isinstance(state, dict) or state.get("added") != remembered:
            raise CheckpointError("it is of another checkpoint")
        replay.load_state_dict(state)
        return True
    except Exception as error:  # a damaged stream makes the restricted unpickler raise nearly anything
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        _LOG.warning(
            "the replay %s is lost (%s): %d items; it fills again before learning goes on",
            path.name,
            reason,
            min(remembered, replay.capacity),
        )
        return False


def prune_replays(folder: Path) -> None:
    """Delete the replay files of all but the last two checkpoints."""
    for path in sorted(folder.glob(_FILES))[:-_KEPT]:
        path.unlink(missing_ok=True)


def forget_replays(folder: Path, after: Path | None = None) -> None:
    """Delete stale replay files that a resumed or restarted run does not use, shard folders included.

    A stale file would count as newer than those the run is about to write, and pruning would keep it instead of a
    file with a checkpoint.

    Args:
        folder: The run's checkpoint folder.
        after: The checkpoint that the run resumes from; only later replay files are deleted (a killed process never
            wrote their checkpoints). None where the run starts anew: all are deleted.
    """
    for pattern in (_FILES, f"*/{_FILES}"):
        for path in folder.glob(pattern):
            if after is None or path.stem > after.stem:
                path.unlink(missing_ok=True)
