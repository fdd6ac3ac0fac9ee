"""The Dagster instance that commands work with."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from navi_core.errors import RunError
from navi_core.record import navi_home, write_durably
from navi_pipeline.lib.records.documents import PACKAGE, shipped_folder

if TYPE_CHECKING:
    import dagster as dg

PROCESS_TAG = "navi/process"
"""Tag of a run: the machine it was launched on; where a command works on it itself, that command's `process_mark`."""


def process_mark(pid: int) -> str:
    """Return the machine and when a process began there, which distinguishes it from others of the same process id.

    Raises:
        OSError: There is no such process any more.
    """
    host = platform.node()
    if not Path("/proc/self").exists():
        return host
    state, *about = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if state == "Z":
        raise ProcessLookupError(f"process {pid} has ended")
    return f"{host} {about[18]}"


def dagster_home() -> Path:
    """Return Dagster's folder: `$DAGSTER_HOME`, or `dagster_home/` of the checkout.

    Where there is no checkout, or it is another user's, it is `dagster/` of the Navi home, made with Navi's settings.

    Raises:
        RunError: It holds no dagster.yaml, or this user may not write to it.
    """
    named = os.environ.get("DAGSTER_HOME")
    ours = shipped_folder("dagster_home")
    # A checkout has it beside the package; a copy in an installation is for reading.
    if named or (ours.parent != PACKAGE and _may_write(ours)):
        home = Path(named or ours).absolute()
    else:
        home = navi_home() / "dagster"
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "dagster.yaml").exists():
            write_durably(home / "dagster.yaml", (ours / "dagster.yaml").read_bytes())
    if not (home / "dagster.yaml").exists():
        raise RunError(f"{home} holds no dagster.yaml; unset DAGSTER_HOME, or copy {ours / 'dagster.yaml'} there")
    if not _may_write(home):
        raise RunError(f"{home}, where Dagster keeps its runs, cannot be written; unset DAGSTER_HOME, or name another")
    return home


def what_is_missing(home: Path) -> list[str]:
    """Return a line for people about the sections of Navi's settings that a Dagster home lacks; none where it has all.

    A home's dagster.yaml is its owner's, who may have added to it: an upgrade changes only the one in a checkout.
    """
    import yaml

    ours = shipped_folder("dagster_home") / "dagster.yaml"
    # As Dagster reads it: a section that was appended again is no error there.
    all_of_them, there = (yaml.safe_load(file.read_text("utf-8")) or {} for file in (ours, home / "dagster.yaml"))
    lacks = sorted(set(all_of_them) - set(there))
    return [f"{home / 'dagster.yaml'} lacks {', '.join(lacks)}; copy that from {ours}"] if lacks else []


def _may_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


@contextmanager
def open_instance() -> Iterator[dg.DagsterInstance]:
    """Open the instance of `$DAGSTER_HOME`."""
    import dagster as dg

    with dg.DagsterInstance.from_config(os.environ["DAGSTER_HOME"]) as instance:
        yield instance
