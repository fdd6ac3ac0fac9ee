"""The progress bar of long commands, on stderr."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from navi_core.errors import printable


class Update(Protocol):
    """How a command moves its bar: what is being done, how much is done, of how much."""

    def __call__(self, label: str, done: float, total: float = 1.0) -> None:
        """Show it."""


@contextmanager
def progress_bar(title: str, *, quiet: bool = False, counted: bool = False) -> Iterator[Update]:
    """Show a bar; the block is given what moves it.

    Args:
        title: What stands before the bar.
        quiet: Show nothing; without a terminal nothing is shown either.
        counted: Show how many of how many are done, not a percentage.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn(title), BarColumn(), MofNCompleteColumn() if counted else TaskProgressColumn(),
        TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}"),
    )  # fmt: skip
    disable = quiet or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True, disable=disable) as bar:
        task = bar.add_task("", total=None)

        def update(label: str, done: float, total: float = 1.0) -> None:
            bar.update(task, description=printable(label)[-80:], completed=done, total=total)

        yield update
