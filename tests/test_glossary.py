"""Glossary: every term names something that the code holds."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS = re.findall(
    r"^\| (.+?) \| (.+?) \| `([\w.]+)` \|$", (ROOT / "docs/reference/glossary.md").read_text("utf-8"), re.M
)
SOURCES = "\n".join(
    file.read_text("utf-8") for room in ("navi_core", "navi_pipeline") for file in sorted((ROOT / room).rglob("*.py"))
)


def test_the_glossary_defines_at_least_thirty_terms() -> None:
    assert len(ROWS) >= 30
    assert len({term for term, _, _ in ROWS}) == len(ROWS)


def test_every_term_of_the_glossary_is_a_name_in_the_code() -> None:
    words = set(re.findall(r"\w+", SOURCES))
    assert [name for _, _, name in ROWS if name not in words] == []
