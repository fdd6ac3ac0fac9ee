"""The Dagster instance that commands work with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from navi_core.errors import RunError

if TYPE_CHECKING:
    import dagster as dg

__all__ = ["dagster_home", "open_instance"]


def dagster_home() -> Path:
    """Return Dagster's folder: `$DAGSTER_HOME`, or `dagster_home/` of the checkout.

    Raises:
        RunError: It holds no dagster.yaml.
    """
    home = Path(os.environ.get("DAGSTER_HOME") or Path(__file__).resolve().parents[2] / "dagster_home").absolute()
    if not (home / "dagster.yaml").exists():
        raise RunError(f"{home} holds no dagster.yaml; set DAGSTER_HOME to the checkout's dagster_home folder")
    return home


@contextmanager
def open_instance() -> Iterator[dg.DagsterInstance]:
    """Open the instance of `$DAGSTER_HOME`."""
    import dagster as dg

    with dg.DagsterInstance.from_config(os.environ["DAGSTER_HOME"]) as instance:
        yield instance
