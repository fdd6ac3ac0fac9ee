"""Measure pairs: `python -m tests.bits [SUBJECT …]`; without a subject all, whose differences are put into the page."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.bits.pairs import measure, write_page

if __name__ == "__main__":
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for ways, subject, most in measure(Path(folder), sys.argv[1:]):
            found[ways, subject] = most
            sys.stdout.write(f"{subject}, {ways}: {most:.2g}\n")
            sys.stdout.flush()
    if not sys.argv[1:]:
        write_page(found)
