"""The client printed in docs/reference/wire.md flies an episode, and the document's tables name what the code has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from navi_core.service.wire import TOPICS
from navi_core.service.wire.messages import MESSAGES

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs/reference/wire.md").read_text()
CLIENT = re.search(r"```python\n(.*?)```", DOCUMENT, re.S)[1]


def test_printed_client_has_twenty_lines_without_navi_imports() -> None:
    lines = [line for line in CLIENT.splitlines() if line.strip()]
    assert len(lines) <= 20 and "navi" not in CLIENT.lower()


def test_the_printed_client_steps_an_episode(stage, tmp_path: Path) -> None:
    server = stage.environment()
    file = tmp_path / "client.py"
    file.write_text(CLIENT)
    done = subprocess.run(
        [sys.executable, str(file), server.answer_endpoint],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[1]) == server._results[0].episode_return and server.steps == 12


def test_every_message_field_and_topic_is_documented() -> None:
    for name, cls in MESSAGES.items():
        section = DOCUMENT.partition(f"### `{name}`")[2].partition("\n##")[0]
        assert all(f"`{field}`" in section for field in cls.checks()), name
    assert all(topic in DOCUMENT for topic in TOPICS)
