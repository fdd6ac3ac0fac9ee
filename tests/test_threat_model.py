"""The threat model's page: each refused attack names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEST = re.compile(r"`(test_\w+)` \|$")


def test_each_refused_attack_names_its_test():
    page = (ROOT / "docs/operate/threat-model.md").read_text()
    table = page.partition("## Refused")[2].partition("## Not defended")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    assert len(rows) > 30
    assert [row for row in rows if f"def {TEST.findall(row)[0]}(" not in tests] == []
