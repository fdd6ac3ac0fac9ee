"""Mutants of the kernels: a table by hand, each in a copy of the sources, with the tests of its group.

A kernel is compiled when a test first calls it, so a mutant costs a build of the library, or of one numba module.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("kernels.yaml")
_PATIENCE = 900.0
"""Time after which a mutant counts as late (s); all tests together may take four times as long."""
Row = dict[str, Any]


def table() -> tuple[dict[str, list[str]], list[Row]]:
    """Return the test files of each group, and the mutants."""
    given = yaml.safe_load(TABLE.read_text())
    keys = ("file", "group", "old", "new", "why")
    tests = {group: files.split() for group, files in given["tests"].items()}
    return tests, [dict(zip(keys, row, strict=True)) for row in given["mutants"]]


def kernel_campaign(folder: Path) -> Iterator[Row]:
    """Yield a row for each mutant of the table; those of earlier starts are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    file, copy = folder / "kernels.jsonl", folder / "kernels"
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    known = {(row["module"], row["statement"], row["text"]): row for row in found}
    tests, mutants = table()
    ready = False
    for mutant in mutants:
        name = {"module": mutant["file"], "statement": mutant["old"], "text": f"{mutant['old']} → {mutant['new']}"}
        row = known.get(tuple(name.values()))
        if row is None:
            if not ready:
                _lay_down(copy)
                ready = True
            row = name | _tried(copy, mutant, tests[mutant["group"]])
            with file.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
        yield row


def _lay_down(copy: Path) -> None:
    """Copy the project's files, and prove once that the tests pass there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    names = sorted(filter(None, listed.stdout.split("\0")))
    files = [ROOT / name for name in names if (ROOT / name).is_file()]  # a link may lead to a folder
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    proof = copy / "proven"
    proven = proof.exists() and proof.read_text() == digest
    if not proven:
        shutil.rmtree(copy, ignore_errors=True)
    for name in names:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).unlink(missing_ok=True)
        # With its time, which compiled numba modules are known by.
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    every = sorted({file for files in table()[0].values() for file in files})
    if not proven and (code := _run(copy, every, 4 * _PATIENCE)):
        raise SystemExit(f"the tests of the kernels fail without a mutant (exit code {code}); see {copy}/output.txt")
    proof.write_text(digest)


def _tried(copy: Path, mutant: Row, tests: list[str]) -> Row:
    """Run the tests of a mutant in the copy, and mend the copy again."""
    file = copy / "navi_core/kernels" / mutant["file"]
    text = file.read_text()
    began = time.monotonic()
    file.write_text(text.replace(mutant["old"], mutant["new"]))
    try:
        code = _run(copy, tests)
    finally:
        file.write_text(text)
    outcome = {0: "survived", 1: "killed", -9: "late"}.get(code, "killed" if code < 0 else f"exit code {code}")
    if "NativeUnavailableError" in (copy / "output.txt").read_text():
        outcome = "not compiled"
    seconds = round(time.monotonic() - began, 1)
    line = text[: text.index(mutant["old"])].count("\n") + 1
    return {"line": line, "outcome": outcome, "seconds": seconds}


def _run(copy: Path, tests: list[str], patience: float = _PATIENCE) -> int:
    """Run tests in the copy with caches of its own; return the exit code, -9 where they do not end."""
    caches = {"XDG_CACHE_HOME": str(copy / "cache"), "NUMBA_CACHE_DIR": str(copy / "numba")}
    variables = {**os.environ, **caches, "PYTHONPATH": str(copy)}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    with (copy / "output.txt").open("w") as log:
        child = subprocess.Popen(command, cwd=copy, env=variables, stdout=log, stderr=log, start_new_session=True)
        try:
            return child.wait(patience)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            child.wait()
            return -9
