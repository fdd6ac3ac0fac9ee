"""Every file that commit ed13726 wrote is read as that commit read it (`tests/snapshots/readers.py`)."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.snapshots.readers import READERS, content

FILES = Path(__file__).parent / "snapshots" / "ed13726"
CONTENTS = json.loads((FILES / "contents.json").read_text())
NEEDS = {"exported_onnx": "onnxruntime"}


def test_every_format_has_a_reader() -> None:
    assert set(CONTENTS) == set(READERS)


@pytest.mark.parametrize("name", sorted(READERS))
def test_file_is_read_as_it_was_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    for archive in sorted(FILES.glob("*.tar.xz")):
        with tarfile.open(archive) as packed:
            packed.extractall(tmp_path, filter="data")
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "home"))
    assert content(name, tmp_path) == CONTENTS[name]
