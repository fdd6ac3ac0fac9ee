"""Checkpoint files of a run directory: naming, writing, pruning, and finding the last good one to resume from."""

import logging
import re
from pathlib import Path

from navi_core.errors import CheckpointError, CheckpointVersionError
from navi_core.learn.replay.replay_file import forget_replays
from navi_core.models import Checkpoint, load_checkpoint, save_checkpoint
from navi_core.record import RunDirectory
from navi_core.record.durable import write_durably

_LOG = logging.getLogger("navi.learn")
_NAME = re.compile(r"step-(\d{12})\.pt")
_SET_ASIDE = ".broken"


def checkpoint_path(folder: Path, steps: int) -> Path:
    """Return the path of the checkpoint file after `steps` decisions."""
    return folder / f"step-{steps:012d}.pt"


def checkpoints_in(folder: Path) -> list[Path]:
    """List the checkpoint files of a run, oldest first."""
    return sorted(file for file in folder.glob("step-*.pt") if _NAME.fullmatch(file.name))


def _set_aside_in(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"step-*.pt{_SET_ASIDE}"))


def keep_checkpoint(path: Path, state: Checkpoint, *, run: RunDirectory, copy: Path | None = None) -> None:
    """Write a checkpoint, and prune the run's older checkpoints to `keep_checkpoints`.

    Args:
        path: The checkpoint file.
        state: The checkpoint's content.
        run: The run's directory.
        copy: Another file with the same content, written first.
    """
    if copy is not None:
        write_durably(path, save_checkpoint(copy, state).read_bytes())
    else:
        save_checkpoint(path, state)
    for old in checkpoints_in(run.checkpoints)[: -(state.config["keep_checkpoints"] + 1)]:
        old.unlink(missing_ok=True)


def take_up(folder: Path, *, fresh: bool, expect_encoder: str, expect_core: str) -> Path | None:
    """Clean up a run's checkpoint folder; return the checkpoint to resume from; the caller holds the run's lock.

    Args:
        folder: The run's checkpoint folder.
        fresh: Delete all checkpoints: the run starts anew.
        expect_encoder: The run's encoder backend.
        expect_core: The run's temporal core.

    Returns:
        The last good checkpoint, or None where the run starts.

    Raises:
        CheckpointError: There are checkpoints and none of them can be used.
    """
    sweep_unfinished(folder)
    if fresh:
        for path in (*checkpoints_in(folder), *_set_aside_in(folder)):
            path.unlink(missing_ok=True)
    found = last_good_checkpoint(folder, expect_encoder=expect_encoder, expect_core=expect_core)
    forget_replays(folder, found)
    return found


def last_good_checkpoint(folder: Path, *, expect_encoder: str, expect_core: str) -> Path | None:
    """Find the newest readable checkpoint; unreadable files are set aside as `<name>.broken` with a warning.

    The next older checkpoint is tried after each unreadable one, so a damaged file costs some minutes of training and
    not the run. If none is readable the run is refused, also the next time: a silent restart would look like a
    resumed run.

    Args:
        folder: The run's checkpoint folder.
        expect_encoder: The run's encoder backend.
        expect_core: The run's temporal core.

    Returns:
        Its path, or None if there never was one.

    Raises:
        CheckpointError: There are checkpoints and none of them can be used, or one is of another version of Navi.
    """
    broken = [f"{path.name}: set aside by an earlier start" for path in _set_aside_in(folder)]
    for path in reversed(checkpoints_in(folder)):
        try:
            load_checkpoint(path, expect_encoder=expect_encoder, expect_core=expect_core)
            return path
        except CheckpointVersionError as error:
            # Intact, and usable by the version of Navi that wrote it, so it is not set aside.
            raise CheckpointVersionError(f"{error}; or begin this run anew with --fresh") from None
        except CheckpointError as error:
            _LOG.warning("checkpoint %s cannot be used (%s); falling back to the one before", path.name, error)
            broken.append(f"{path.name}: {error}")
            path.replace(path.with_name(path.name + _SET_ASIDE))
    if broken:
        # A pipeline's asset, trial or night has no such option.
        raise CheckpointError(
            f"no checkpoint in {folder} can be used ({'; '.join(broken)}); start again with --fresh, or move "
            f"{folder.parent} away"
        )
    return None


def sweep_unfinished(folder: Path) -> None:
    """Delete temporary checkpoint and replay files left by a killed process; the caller holds the run's lock."""
    for pattern in (".*.pt.*.tmp", ".*.replay.*.tmp", "shard-*/.*.replay.*.tmp"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def check_scenes(checkpoint: Checkpoint, now: dict[str, str]) -> None:
    """Validate that the run's scenes are those of its checkpoint, by content hash.

    Args:
        checkpoint: The checkpoint.
        now: Content hash by scene name.

    Raises:
        CheckpointError: A scene was added, removed or changed.
    """
    before = checkpoint.scene_hashes
    changed = sorted(name for name in before | now if before.get(name) != now.get(name))
    if changed:
        # The rows stand at poses of those scenes, and the network knows their semantic ids.
        raise CheckpointError(
            f"the scenes have changed since step {checkpoint.step_id} ({', '.join(changed[:5])}); start again with "
            "--fresh, or go on from its weights in a new run (another --partition)"
        )


def mismatch(error: Exception) -> str:
    """Format an error of `load_state_dict` as one line; torch lists every array that does not fit."""
    _, *arrays = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    if not arrays:
        return str(error)
    more = f"; {len(arrays) - 1} more like it" if len(arrays) > 1 else ""
    return f"another network, {arrays[0].rstrip('.')}{more}"
