"""The terminal at 80 and 160 columns: help, errors, progress and tables, as a person sees them (a pty)."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from navi_core import terminal
from navi_core.terminal import print_records, print_table
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
    assert code == 2 and text.startswith("error: no preset 'qick'; did you mean 'quick'? allowed: demo, generalist,")
    assert "rooms_standard, scans, standard, or a .yaml file" in text and max(len(line) for _, line in lines) <= 80


WORDS = st.text(string.ascii_lowercase + "_", min_size=1, max_size=14)
VALUES = st.one_of(st.integers(0, 10**10), st.floats(-1e6, 1e6), st.text("ab/台", max_size=60), st.none())


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=14, unique=True), st.data(), st.sampled_from([80, 160]))
def test_every_table_fits_its_terminal_with_its_right_frame(names, data, columns):
    records = [{name: data.draw(VALUES) for name in names} for _ in range(3)]
    printed = captured(lambda: print_records("records", records), columns)
    framed = [line for line in printed if line[:1] in "┏┃┡│└"]
    assert max(map(cell_len, printed)) <= columns and all(line.rstrip()[-1] in "┓┃┩│┘" for line in framed)
    assert len({cell_len(line) for line in framed}) == 1


def captured(show, columns):
    """Return the lines that a function prints on a console of that width."""
    from rich.console import Console

    out = Console(width=columns, markup=False, highlight=False, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terminal, "console", lambda _width=None: out)
        show()
    return out.export_text().splitlines()


def test_a_table_without_room_names_the_columns_it_leaves_out_and_breaks_no_heading():
    rows = [["v001", *[f"{number}.123456" for number in range(9)]]]
    headings = ["version", *[f"a_long_number_{number}" for number in range(9)]]
    printed = captured(lambda: print_table("t", headings, rows, words=1), 60)
    assert any("┃ … ┃" in line for line in printed) and "… stands for" in " ".join(printed)
    assert any(re.search("┃ +number_8 ┃$", line.rstrip()) for line in printed)


def test_numbers_of_records_are_rounded_and_their_thousands_separated():
    printed = " ".join(captured(lambda: print_records("t", [{"bytes": 2569776, "share": 2.41234, "s": 14584.7}]), 80))
    assert "2,569,776" in printed and "2.412" in printed and "14,585" in printed


def test_doctor_fits_80_columns(tmp_path):
    from navi_core.config import CompileConfig
    from navi_core.scenes import compile_mesh, generate_scene

    scene = compile_mesh(generate_scene("maze", 0), CompileConfig(resolution=64))
    scene.save(tmp_path / "a_scene_of_a_rather_long_name_for_eighty_columns.gmdag")
    code, lines = in_terminal(f"doctor {tmp_path}", NAVI_HOME=str(tmp_path))
    texts = [line for _, line in lines]
    assert code == 0 and max(map(cell_len, texts)) <= 80, texts
    assert all(line.rstrip()[-1] in "┓┃┩│┘" for line in texts if line[:1] in "┏┃┡│└"), texts


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("navi train ppo --preset q", ["quick"]),
        ("navi models show lat", ["latest"]),
        ("navi evaluate far", ["farthest-ray"]),
        ("navi query rank", ["ranked_trials", "ranking"]),
        ("navi models export v001 --format o", ["onnx"]),
        ("navi train ppo --scene at", ["atrium:"]),
        ("navi runs co", ["compare"]),
        ("navi bc", []),
    ],
)
def test_tab_completes_values_and_hides_old_names(line, values, tmp_path, monkeypatch, capsys):
    from navi_core.cli.main import main

    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "registry.json").write_text('{"aliases": {"latest": {}}, "versions": {"v001": {}}}')
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_NAVI_COMPLETE": "complete_bash"}
    for name, value in ({"NAVI_HOME": str(tmp_path)} | words).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["navi"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.split() == values


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("trian", "no such command 'trian'; did you mean 'train'? next: navi --help"),
        ("train pppo", "no learner 'pppo' to train by; did you mean 'ppo'?"),
        ("train ppo --stpes 3", "no such option: --stpes; did you mean '--steps'?"),
        ("train ppo --set ppo.lr=3", "ppo: PPOConfig has no key 'lr'; did you mean 'learning_rate'?"),
        ("evaluate farthest-rey", "did you mean 'farthest-ray'?"),
        ("evaluate random --scene apartmnt:3", "apartmnt:3: did you mean 'apartment'?"),
        ("evaluate random --protocol ful", "no protocol 'ful'; did you mean 'full'?"),
        ("train ppo --task cart_pol", "no reference task 'cart_pol'; did you mean 'cart_pole'?"),
        ("study sweep resolution_swep", "no sweep 'resolution_swep'; did you mean 'resolution_sweep'?"),
        ("models export v001 --format onx", "--format onx; did you mean 'onnx'?"),
        ("settings --of nigtly", "--of nigtly: no such settings; did you mean 'nightly'?"),
    ],
)
def test_a_mistyped_name_is_met_with_the_nearest_in_one_line(command, message, tmp_path, monkeypatch, capsys):
    from navi_core.cli.main import main

    monkeypatch.setenv("NAVI_HOME", str(tmp_path))
    monkeypatch.setenv("DAGSTER_HOME", "")
    with pytest.raises(SystemExit) as caught:
        main(command.split())
    reported = capsys.readouterr().err
    assert caught.value.code != 0 and reported.count("\n") == 1 and "\x1b" not in reported
    assert reported.startswith(f"error: {message}"), reported


@pytest.mark.parametrize(("text", "number"), [("1e5", 100_000), ("100k", 100_000), ("2.5M", 2_500_000)])
def test_large_numbers_are_read_as_people_write_them(text, number):
    import typer

    from navi_core.cli.main import build_app
    from navi_core.errors import whole_number
    from navi_core.presets import parse_assignments

    ppo = typer.main.get_command(build_app()).commands["train"].commands["ppo"]
    for words in (["--steps", text], [f"--steps={text}"]):
        assert ppo.make_context("ppo", words).params["steps"] == number
    assert parse_assignments([f"total_steps={text}"]) == {"total_steps": number}
    assert whole_number("1.55k") == 1550 and all(whole_number(odd) is None for odd in ("1.5555k", "v001", "3", "1e-4"))
