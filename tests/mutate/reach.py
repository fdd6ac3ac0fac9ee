"""Pytest plugin: which tests reach which statements of the mutated rooms, written to the file MUTATE_REACH."""

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

_KEPT = 40
"""Tests kept of a statement, the fastest."""


class Reach:
    """Record of the statements that each passing test reaches.

    Args:
        modules: Modules whose functions are instrumented.
        file: File of the result: {"seconds": {test: CPU time}, "lines": {"module:line": tests}}.
    """

    def __init__(self, modules: tuple[str, ...], file: Path) -> None:
        self._reached, self._file = Coverage(modules).reached, file
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._lines: dict[str, list[str]] = defaultdict(list)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None]:
        """Note what a test reaches."""
        self._reached.clear()
        began = time.process_time()
        yield
        reached = list(self._reached)  # a thread that outlives its test may add to it
        if reached and item.nodeid not in self._failed:
            self._seconds[item.nodeid] = round(time.process_time() - began, 3)
            for module, line in reached:
                self._lines[f"{module}:{line}"].append(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the tests that fail under instrumentation, and those that skip."""
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the record."""
        lines = {place: sorted(tests, key=self._seconds.__getitem__)[:_KEPT] for place, tests in self._lines.items()}
        used = {test for tests in lines.values() for test in tests}
        seconds = {test: self._seconds[test] for test in sorted(used)}
        self._file.write_text(json.dumps({"seconds": seconds, "lines": lines, "failed": sorted(self._failed)}))


def pytest_configure(config: pytest.Config) -> None:
    """Instrument the modules of the file MUTATE_MODULES, one a line."""
    modules: Any = Path(os.environ["MUTATE_MODULES"]).read_text().split()
    config.pluginmanager.register(Reach(tuple(modules), Path(os.environ["MUTATE_REACH"])))
