"""The replay beside its checkpoint: written with it, kept for the last two, never part of a registered version.

A checkpoint is copied into the registry and loaded by every evaluation; the replay is many times larger and of use to
the run alone. The file is written before its checkpoint, so that a checkpoint without one is a sign of damage, and the
run then reports how many items it lost.
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
    """Return the file of the replay that belongs to a checkpoint."""
    return checkpoint.with_suffix(".replay")


def save_replay(replay: PrioritizedReplay, checkpoint: Path) -> None:
    """Write the replay of a checkpoint that is about to be written.

    Raises:
        CheckpointError: It cannot be written.
    """
    path = replay_path(checkpoint)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # It may be most of the memory that there is: no copy of it is made on the way to the disk.
        with durable_file(path) as stream:
            torch.save(replay.state_dict(copy=False), stream)
    except (OSError, RuntimeError) as error:
        # torch's writer raises its own error after that of the stream.
        reason = error if isinstance(error, OSError) else error.__context__
        if not isinstance(reason, OSError):
            raise
        raise CheckpointError(f"{path}: the replay cannot be written: {reason.strerror or reason}") from error


def load_replay(replay: PrioritizedReplay, checkpoint: Path, remembered: int) -> bool:
    """Fill the replay with what was kept beside a checkpoint.

    Without a readable file the replay stays empty, with a warning: the run goes on from the checkpoint's weights and
    learns again when it has seen `learning_starts` decisions.

    Args:
        replay: An empty replay.
        checkpoint: The checkpoint.
        remembered: Items that were ever added when it was written.

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
        # Mapped, not read: the items go from the file to their places.
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
    """Delete all replays but those of the last two checkpoints."""
    for path in sorted(folder.glob(_FILES))[:-_KEPT]:
        path.unlink(missing_ok=True)


def forget_replays(folder: Path, after: Path | None = None) -> None:
    """Delete the replays that a run goes on without, those in folders of shards too.

    One that stayed would count as newer than those that the run is about to write, in place of one with a checkpoint.

    Args:
        folder: The run's checkpoint folder.
        after: The checkpoint that the run goes on from: those of a process that was killed before it wrote theirs.
            None where the run starts anew: all.
    """
    for pattern in (_FILES, f"*/{_FILES}"):
        for path in folder.glob(pattern):
            if after is None or path.stem > after.stem:
                path.unlink(missing_ok=True)
