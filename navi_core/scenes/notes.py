"""Warnings of the readers and the compiler, collected where a table or a report shows them."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def collected_warnings(logger: str = "navi_core.scenes") -> Iterator[list[str]]:
    """Collect what is logged below `logger` instead of letting it cut through a progress bar."""
    notes: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger(logger)
    # Not propagated: the caller passes them to an outer collector once.
    before = log.propagate, log.handlers
    log.propagate, log.handlers = False, [handler]
    try:
        yield notes
    finally:
        log.propagate, log.handlers = before
