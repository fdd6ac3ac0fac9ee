"""Pictures of the documentation are current."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.code_blocks import ROOT, run

IMAGES = ROOT / "docs" / "img"


def test_every_diagram_is_what_the_script_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    drawn = importlib.import_module("diagrams").diagrams()
    assert {path.name for path in IMAGES.glob("*.svg")} == set(drawn) and len(drawn) >= 15
    assert [name for name, text in drawn.items() if (IMAGES / name).read_text("utf-8") != text] == []


def test_pages_and_charts_of_the_results_are_what_the_script_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    made, folder = importlib.import_module("results_pages").files(), ROOT / "docs" / "results"
    assert {f"charts/{path.name}" for path in folder.glob("charts/*")} == {name for name in made if "charts/" in name}
    assert [name for name, text in made.items() if (folder / name).read_text("utf-8") != text] == []
    assert made["index.md"].count("![") >= 10, "ten charts on the first page"


def test_every_picture_is_shown_on_a_page() -> None:
    pages = "".join(path.read_text("utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    assert [path.name for path in IMAGES.iterdir() if path.suffix in (".svg", ".png") and path.name not in pages] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_readme_runs_and_its_picture_is_drawn_again(tmp_path: Path) -> None:
    """The demo and one comparison, 4 minutes on two quiet cores. Paths may differ between processors, places do not."""
    from PIL import Image, ImageChops

    printed = run(ROOT / "README.md", tmp_path)
    assert "forward-plus" in printed and "lead of the policy" in printed
    drawn = tmp_path / "flights.png"
    environment = {
        "NAVI_HOME": str(tmp_path / ".navi"),
        "PYTHONPATH": str(ROOT),
        "PATH": str(Path(sys.executable).parent),
    }
    subprocess.run(
        [sys.executable, IMAGES / "flights.py", drawn], env=environment, cwd=tmp_path, check=True, timeout=600
    )
    with Image.open(drawn) as fresh, Image.open(IMAGES / "flights.png") as committed:
        assert fresh.size == committed.size
        difference = ImageChops.difference(fresh.convert("L"), committed.convert("L")).point(lambda x: 255 * (x > 64))
        assert difference.histogram()[255] < 0.1 * fresh.width * fresh.height
