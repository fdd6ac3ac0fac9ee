"""The Navi home: `$NAVI_HOME`, by default `.navi` in the working directory."""

import os
from pathlib import Path


def navi_home() -> Path:
    """Return the folder of scenes, runs, models, outbox and warehouse; it need not exist yet.

    Returns:
        `$NAVI_HOME` if it is set and not empty, else `./.navi`, as an absolute path.
    """
    return Path(os.path.expanduser(os.environ.get("NAVI_HOME") or ".navi")).absolute()


def outbox_path() -> Path:
    """Return the folder of metric segments."""
    return navi_home() / "outbox"
