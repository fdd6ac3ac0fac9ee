"""Commands in a terminal of a given size (a pty): what they print, as lines without colours."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")
CODE = "import sys; from navi_core.cli.main import main; main(sys.argv[1:])"
"""The command `navi` in a fresh interpreter."""


def in_terminal(
    command: str, columns: int = 80, rows: int = 24, timeout: float = 120.0, code: str = CODE, **variables: str
) -> tuple[int, list[tuple[float, str]]]:
    """Run `navi` with a terminal of the given size.

    Args:
        command: Its arguments.
        columns: Width of the terminal.
        rows: Height of the terminal.
        timeout: Seconds after which it is killed.
        code: Program that is run.
        variables: Further environment variables.

    Returns:
        The exit code, and every line as it was printed (a redrawn line each time), with the seconds since the start.
    """
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **variables}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "CI"):
        environment.pop(name, None)
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", code, *shlex.split(command)],
        stdin=side,
        stdout=side,
        stderr=side,
        env=environment,
        close_fds=True,
    )
    os.close(side)
    pieces: list[tuple[float, bytes]] = []
    try:
        while time.monotonic() - began < timeout:
            if not select.select([main], [], [], 0.2)[0]:
                if process.poll() is not None:
                    break
                continue
            try:
                data = os.read(main, 65536)
            except OSError:  # the other side is closed
                break
            pieces.append((time.monotonic() - began, data))
    finally:
        if process.poll() is None and time.monotonic() - began >= timeout:
            process.kill()
        code_ = process.wait()
        os.close(main)
    lines: list[tuple[float, str]] = []
    rest, decoder = "", codecs.getincrementaldecoder("utf-8")("replace")
    for moment, data in pieces:
        # A cursor movement begins a line anew, as a carriage return does.
        text = rest + re.sub(r"\x1b\[\d*[AK]|\x1b\[2K", "\n", decoder.decode(data))
        *whole, rest = re.split(r"[\r\n]+", text)
        lines += [(moment, _CODES.sub("", line)) for line in whole]
    lines.append((time.monotonic() - began, _CODES.sub("", rest)))
    return code_, [(moment, line) for moment, line in lines if line]
