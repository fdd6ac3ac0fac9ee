"""Rooms that are mutated, and the map of which tests reach which of their statements."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutate.mutations import Mutant

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {
    "world": ("navi_core/world", "tests/world"),
    "learn": ("navi_core/learn", "tests/learn"),
    "evaluate": ("navi_core/evaluate", "tests/evaluate"),
    "record": ("navi_core/record", "tests/record"),
    "warehouse": ("navi_pipeline/lib/warehouse", "tests/pipeline/warehouse"),
}
"""Room → its folder, and the folder of its tests."""
_FILE = 0.5
"""CPU time of the import of a test's file (s)."""
_OTHER = 3.0
"""Factor by which the tests of other rooms stand behind those of the room."""


@dataclass(frozen=True)
class ReachMap:
    """Which tests reach which statements.

    Attributes:
        seconds: Test → its CPU time (s).
        lines: "module:line" → the tests that reach it.
    """

    seconds: dict[str, float]
    lines: dict[str, list[str]]

    def chosen(self, mutant: Mutant, room: str, budget: float, left_out: set[str]) -> list[str]:
        """Return the tests that reach a mutant within a budget of CPU time (s): fast ones and the room's own first."""
        found = set(self.lines.get(f"{mutant.module}:{mutant.line}", ())) - left_out
        own = ROOMS[room][1] + "/"
        ranked = sorted(found, key=lambda name: (self.seconds[name] * (1 if name.startswith(own) else _OTHER), name))
        spent, chosen, files = 0.0, [], set[str]()
        for name in ranked:
            file = name.partition("::")[0]
            spent += self.seconds[name] + (0.0 if file in files else _FILE)
            if spent > budget and chosen:
                break
            files.add(file)
            chosen.append(name)
        return chosen


def modules_of(room: str) -> list[str]:
    """Return the modules of a room."""
    files = sorted((ROOT / ROOMS[room][0]).rglob("*.py"))
    return [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]


def reach_map(folder: Path, suite: Sequence[str] = ("tests",)) -> ReachMap:
    """Return the map of parts of the default suite, from its files or measured now, a folder of tests at a time.

    Args:
        folder: Folder of the files; one that is deleted is measured anew.
        suite: Folders of tests, with those below them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    modules = folder / "modules.txt"
    modules.write_text("\n".join(name for room in ROOMS for name in modules_of(room)))
    seconds: dict[str, float] = {}
    lines: dict[str, list[str]] = defaultdict(list)
    # The folders of the rooms come first: most is known when this is interrupted.
    own = tuple(tests for _, tests in ROOMS.values())
    chosen = [name for name in _test_folders() if f"{name}/".startswith(tuple(f"{part}/" for part in suite))]
    for tests in sorted(chosen, key=lambda name: (not name.startswith(own), name)):
        file = folder / f"{tests.replace('/', '-')}.json"
        if not file.exists():
            _measure(tests, modules, file)
        found = json.loads(file.read_text())
        seconds |= found["seconds"]
        for place, names in found["lines"].items():
            lines[place] += names
    return ReachMap(seconds, lines)


def _test_folders() -> list[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return sorted({file.parent.relative_to(ROOT).as_posix() for file in files})


def _measure(tests: str, modules: Path, file: Path) -> None:
    """Run the tests of one folder, without those below it, and note what they reach."""
    variables = {"MUTATE_MODULES": str(modules), "MUTATE_REACH": str(file)}
    files = sorted(str(each) for each in (ROOT / tests).glob("test_*.py"))
    options = ["-q", "-p", "tests.mutate.reach", "-p", "no:cacheprovider", "--timeout", "3600"]
    command = [sys.executable, "-m", "pytest", *options, *files]
    with file.with_suffix(".log").open("w") as log:
        subprocess.run(command, env={**os.environ, **variables}, cwd=ROOT, stdout=log, stderr=log, check=False)
