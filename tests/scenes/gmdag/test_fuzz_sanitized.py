"""Every mutated file that loads is flown through kernels built with address and undefined-behaviour sanitizers.

One command: `pytest -m slow tests/scenes/gmdag/test_fuzz_sanitized.py -s`; it prints the counts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from navi_core.kernels.native.library import find_compiler
from tests.kernels.sanitizers import run_sanitized, sanitized_library

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sanitized kernels."""
    if find_compiler() is None:
        pytest.skip("no C++ compiler here")
    return sanitized_library(tmp_path_factory.mktemp("sanitized"))


def test_twenty_thousand_mutated_files_fly_under_sanitizers(library: Path) -> None:
    counts = json.loads(run_sanitized("tests.scenes.gmdag.fuzz_gmdag", "20000", "0", str(library), timeout=7000))
    sys.stdout.write(f"{counts}\n")
    assert counts["refused"] > 10_000 and counts["flown"] > 500


def test_two_thousand_mutated_meshes_fly_under_sanitizers(library: Path) -> None:
    counts = json.loads(run_sanitized("tests.scenes.readers.fuzz_meshes", "2000", "1", str(library), timeout=7000))
    sys.stdout.write(f"{counts}\n")
    assert counts["refused"] > 400 and counts["flown"] > 200
