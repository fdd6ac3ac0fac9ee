"""A run that `navi dashboard` finds and shows; whether anybody looks changes nothing in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from navi_core.learn.run.records import Progress

AUTO, OFF = "auto", "off"
Publish = Annotated[
    str,
    typer.Option(
        help="Where a dashboard may watch: auto (a free port of this machine, found by `navi dashboard`), off, or an "
        "endpoint such as tcp://127.0.0.1:5557.",
        metavar="WHERE",
    ),
]
Watch = Callable[[Any], Any]
ProgressCallback = Callable[["Progress"], None]


@contextmanager
def watchable(
    name: str, algorithm: str, publish: str, progress: ProgressCallback, *, captured: bool = False
) -> Iterator[tuple[Watch | None, ProgressCallback]]:
    """Yield what a training takes as `watch` and `progress`.

    Args:
        name: The run's name.
        algorithm: Its learner.
        publish: `auto`, `off`, or an endpoint.
        progress: Called with each update, besides the viewers.
        captured: Decisions are replayed as one CUDA graph; then the numbers are shown and no drone.

    Raises:
        ServiceError: The endpoint is taken.
    """
    if publish == OFF:
        yield None, progress
        return
    from navi_core.service.viewing.broadcast import ANY_PORT, TrainingBroadcast

    with TrainingBroadcast(name, algorithm, ANY_PORT if publish == AUTO else publish) as broadcast:

        def report_update(update: Progress) -> None:
            progress(update)
            broadcast.progress(update)

        yield (None if captured else broadcast.watch), report_update
