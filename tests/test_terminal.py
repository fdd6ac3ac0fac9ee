"""The terminal at 80 and 160 columns: help, errors, progress and tables, as a person sees them (a pty)."""

from __future__ import annotations

import re

import pytest

from tests.terminal import in_terminal

STAMP = re.compile(r"\d\d:\d\d:\d\d ")
COUNT = re.compile(r"(\d+) % ([\d,]+)/([\d,]+) eta (\S+)")


def test_progress_counts_within_a_rollout_and_no_log_line_stands_beside_a_bar(tmp_path):
    code, lines = in_terminal(
        "train ppo --preset quick --task cart_pole --steps 10k --no-register --publish off --set ppo.rollout=1024 "
        "--set actors=16 --set threads=1",
        NAVI_HOME=str(tmp_path),
    )
    assert code == 0, lines
    texts = [line for _, line in lines]
    assert max(map(len, texts)) <= 80
    assert not [line for line in texts if "━" in line and STAMP.search(line)]
    assert not [line for line in texts if "first rollout" in line]
    shown = [(moment, *found.groups()) for moment, line in lines if (found := COUNT.search(line))]
    counts = [(int(done.replace(",", "")), int(total.replace(",", ""))) for _, _, done, total, _ in shown]
    # The total is that of whole rollouts, and it is not exceeded.
    assert {total for _, total in counts} == {16384} and all(done <= 16384 for done, _ in counts)
    assert counts[-1] == (16384, 16384) and any(0 < done < 16384 and done % 16384 for done, _ in counts)
    began = next(moment for moment, line in lines if "rollouts are whole" in line)
    assert next(moment for moment, *_, left in shown if left != "--:--") - began < 5
    assert texts[-1].startswith("next: navi runs show interactive-quick-")


@pytest.mark.parametrize("columns", [80, 160])
def test_help_begins_with_start_here_and_shows_at_most_20_commands_in_five_panels(columns):
    code, lines = in_terminal("--help", columns=columns)
    texts = [line for _, line in lines]
    assert code == 0 and len(texts) <= 45 and max(map(len, texts)) <= columns
    heads = [line.strip("╭╮─ ") for line in texts if line.startswith("╭")]
    assert heads == ["Start here", "Scenes", "Train", "Judge", "Fly and watch", "Pipeline and data"]
    rows = [line.split()[1] for line in texts if line.startswith("│")]
    assert rows[:3] == ["navi"] * 3 and len(rows) - 3 <= 20
    # One line a command: none is folded.
    assert all(re.match(r"│ [a-z]+ ", line) for line in texts if line.startswith("│"))


def test_errors_are_red_on_a_terminal_and_break_between_words():
    code, lines = in_terminal("train ppo --preset qick")
    text = " ".join(line.strip() for _, line in lines)
    assert code == 2 and text.startswith("error: no preset 'qick'; did you mean 'quick'? allowed: demo, quick, rooms,")
    assert "rooms_standard, scans, standard, or a .yaml file" in text and max(len(line) for _, line in lines) <= 80
