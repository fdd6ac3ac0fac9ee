"""Tutorials and README run as they are printed, with the substitutions that they declare."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.code_blocks import ROOT, blocks, run

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "docs" / "start" / "tour.md", *TUTORIALS]
INCLUDING = [*PAGES, ROOT / "docs" / "how-to" / "extend.md"]
SHOWN = {"text", "", "yaml"}
"""Languages of blocks that are only shown, unless they have a title."""


@pytest.mark.parametrize("page", INCLUDING, ids=lambda page: page.name)
def test_every_block_runs_is_shown_or_gives_a_reason(page: Path) -> None:
    for block in blocks(page):
        assert block.language in {"sh", "python"} | SHOWN, block.text
        assert "--8" not in block.text, "an included file is not found"
        assert block.unused == [], f"a substitution finds nothing in: {block.text}"
        assert not block.left_out or len(block.left_out) > 8


def test_tutorials_are_seven_and_run_commands() -> None:
    assert len(TUTORIALS) == 7
    assert all(any(block.language == "sh" and not block.left_out for block in blocks(page)) for page in TUTORIALS)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the first tutorial was done."""
    folder = tmp_path_factory.mktemp("reader")
    printed = run(ROOT / "docs" / "tutorials" / "first-policy.md", folder)
    assert "v001" in printed and "C_vis" in printed
    return folder


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "page", [page for page in TUTORIALS if page.stem != "first-policy"], ids=lambda page: page.stem
)
def test_tutorial_runs_as_printed(page: Path, home: Path) -> None:
    """All together take about 6 minutes on two quiet cores, 13 on busy ones."""
    assert run(page, home)
