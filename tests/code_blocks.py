"""Runner of the code blocks of pages: commands, files and programs, in order, in one folder and one Navi home.

Blocks: `sh` runs line by line, `python` runs as a program, a block with `title="NAME"` becomes the file NAME;
`text` shows an output, and other languages are only shown. A comment before a block declares what the runner changes:

- `<!-- run: replace OLD => NEW -->` in the next block, to shorten a long command;
- `<!-- run: not: REASON -->` leaves the next block out.

A line that ends in ` &` starts a server, which is ended when the page ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r'((?:^<!-- run: .*? -->\n+)*)^```(\w*)(?: title="([^"]+)")?\n(.*?)^```', re.S | re.M)
_COMMENT = re.compile(r"<!-- run: (.*?) -->", re.S)
_SNIPPET = re.compile(r'^--8<-- "(.+)"$', re.M)


@dataclass
class Block:
    """A code block with its substitutions applied.

    Attributes:
        language: `sh`, `python`, …
        title: File that it becomes, or nothing.
        text: Its text.
        left_out: Reason why it does not run, or nothing.
    """

    language: str
    title: str
    text: str
    left_out: str = ""
    unused: list[str] = field(default_factory=list)
    """Substitutions whose old text is not in the block."""


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page."""
    found = []
    for comments, language, title, text in _BLOCK.findall(page.read_text("utf-8")):
        block = Block(language, title, _SNIPPET.sub(lambda match: (ROOT / match[1]).read_text("utf-8").rstrip(), text))
        for comment in _COMMENT.findall(comments):
            kind, _, rest = " ".join(comment.split()).partition(" ")
            if kind == "not:":
                block.left_out = rest
                continue
            old, _, new = rest.partition(" => ")
            block.unused += [] if kind == "replace" and old in block.text else [comment]
            block.text = block.text.replace(old, new)
        found.append(block)
    return found


def run(page: Path, folder: Path) -> str:
    """Run the blocks of a page in a folder, and return everything that they printed.

    Raises:
        AssertionError: A command or program fails; its last lines are in the message.
    """
    printed, environment = [], _environment(folder)
    with contextlib.ExitStack() as servers:
        for block in blocks(page):
            if block.left_out:
                continue
            if block.title:
                (folder / block.title).write_text(block.text)
            elif block.language == "python":
                printed.append(_run([sys.executable, "-c", block.text], folder, environment))
            elif block.language == "sh":
                for line in _lines(block.text):
                    if variable := re.fullmatch(r"export (\w+)=(\S+)", line):
                        environment[variable[1]] = variable[2]
                    elif line.endswith(" &"):
                        servers.enter_context(_server(line[:-2], folder, environment))
                    else:
                        printed.append(_run(["bash", "-c", line], folder, environment))
    return "".join(printed)


def _environment(folder: Path) -> dict[str, str]:
    """Return variables with a home and Dagster's storage in the folder."""
    dagster = folder / "dagster"
    dagster.mkdir(exist_ok=True)
    shutil.copy(ROOT / "dagster_home" / "dagster.yaml", dagster)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NAVI_", "DAGSTER_"))}
    scripts = folder / "bin"
    scripts.mkdir(exist_ok=True)
    (scripts / "navi").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m navi_core.cli.main "$@"\n')
    (scripts / "navi").chmod(0o755)
    return kept | {
        "NAVI_HOME": str(folder / ".navi"),
        "DAGSTER_HOME": str(dagster),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{scripts}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
    }


def _lines(text: str) -> list[str]:
    """Return the commands of a block, without comments, continued lines joined."""
    joined = re.sub(r"\\\n\s*", " ", text)
    return [line for line in (re.sub(r"\s+# .*$|^#.*$", "", line).strip() for line in joined.splitlines()) if line]


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    return f"$ {command[-1]}\n{done.stdout}{done.stderr}"


@contextlib.contextmanager
def _server(line: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Start a server, wait until it prints, and end it at the end."""
    log = folder / f"server-{time.monotonic_ns()}.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=folder, env=environment, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:
        until = time.monotonic() + 120
        while not log.stat().st_size and time.monotonic() < until:
            assert server.poll() is None, f"{line}\n{log.read_text()}"
            time.sleep(0.1)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(20)
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
