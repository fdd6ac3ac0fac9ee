"""Runs a command and kills it before its n-th change of a file: where a crash can leave something half done.

python -m tests.crash_points HOME N COMMAND…      N 0 kills nothing; the changes are counted in HOME/changes
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

_CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND


def watch(home: Path, kill_at: int) -> None:
    """Count what this process changes under `home`, and kill it before change number `kill_at`."""
    made, seen = os.open(home / "changes", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if not (event in _CHANGES or (event == "open" and args[2] & _WRITES)):
            return
        if not isinstance(args[0], str | bytes | os.PathLike) or not Path(os.fsdecode(args[0])).is_relative_to(home):
            return
        seen += 1
        if seen == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        os.pwrite(made, f"{seen}\n".encode(), 0)

    sys.addaudithook(hook)


if __name__ == "__main__":
    from navi_core.cli.main import main

    watch(Path(sys.argv[1]), int(sys.argv[2]))
    main(sys.argv[3:])
