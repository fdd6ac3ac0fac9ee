"""Pytest plugin: which tests reach which statements of a room's functions, written to the file MUTATE_REACH."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.coverage import Coverage

_RECORD: dict[str, Any] = {}
"""Test → {"seconds": its time, "lines": {module: lines}}; a failed test is left out."""


def pytest_configure() -> None:
    """Instrument the modules MUTATE_MODULES."""
    _RECORD["coverage"] = Coverage(tuple(os.environ["MUTATE_MODULES"].split(",")))
    _RECORD["tests"] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None]:
    """Note what a test reaches."""
    reached = _RECORD["coverage"].reached
    reached.clear()
    began = time.process_time()
    yield
    lines = defaultdict(list)
    for module, line in reached:
        lines[module].append(line)
    if lines and item.nodeid not in _RECORD.get("failed", ()):
        _RECORD["tests"][item.nodeid] = {"seconds": round(time.process_time() - began, 3), "lines": lines}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the tests that fail under instrumentation."""
    if report.failed:
        _RECORD.setdefault("failed", set()).add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write the record."""
    Path(os.environ["MUTATE_REACH"]).write_text(json.dumps(_RECORD["tests"]))
