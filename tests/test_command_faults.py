"""The `navi` command when the system fails it: one line on standard error, an exit code, no traceback."""

import os
import shlex
import subprocess
import sys

import pytest

from navi_core import __version__
from navi_core.cli.main import brain, main, navi_actor


@pytest.mark.parametrize("program", [main, navi_actor, brain])
def test_version_option_needs_no_command(program, capsys):
    with pytest.raises(SystemExit) as caught:
        program(["--version"])
    assert not caught.value.code and capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize(
    "arguments",
    [
        ("scenes", "compile", "x" * 300 + ".obj"),
        ("scenes", "inspect", "x" * 300 + ".gmdag"),
        ("scenes", "discover", "x" * 300),
        ("scenes", "generate", "maze", "--seeds", "9" * 5000),
        ("scenes", "generate", "maze", "--seeds", "²"),
        ("doctor", "x" * 300),
        ("evaluate", "x" * 5000),
    ],
)
def test_invalid_argument_is_a_one_line_error(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    reported = capsys.readouterr().err
    assert caught.value.code != 0 and reported.startswith("error: ")
    assert reported.count("\n") == 1 and os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (("scenes", "compile", "my scenes/x.glb"), ["list", "my scenes"]),
        (("scenes", "inspect", "my scenes/x.gmdag"), ["--out", "my scenes"]),
        (("evaluate", "random", "--scene", "my scenes/x.glb"), ["list", "my scenes"]),
        (("compare", "my scenes/a.json", "random"), ["--out", "my scenes/a.json`"]),
    ],
)
def test_suggested_command_quotes_folders_with_spaces(arguments, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my scenes").mkdir()
    (tmp_path / "my scenes" / "a.json").write_text("{}")
    with pytest.raises(SystemExit):
        main(arguments)
    words = shlex.split(capsys.readouterr().err)
    assert any(words[i : i + 2] == command for i in range(len(words)))


@pytest.mark.parametrize("group", [("scenes", "compile"), ("scenes", "inspect"), ("doctor",)])
def test_escapes_in_a_name_do_not_reach_the_terminal_through_an_error(group, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main([*group, "\x1b[2J\u202ehouse.glb"])
    reported = capsys.readouterr()
    assert (
        "\x1b" not in reported.out + reported.err and "\u202e" not in reported.err and "?[2J?house.glb" in reported.err
    )


def test_invalid_demo_seed_is_refused_before_any_output(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path))
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--seed", str(2**40)])
    assert caught.value.code == 2 and "--seed" in capsys.readouterr().err and os.listdir(tmp_path) == []


def test_a_home_of_an_unknown_user_is_a_folder_of_that_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAVI_HOME", "~nobody-of-this-name/navi")
    with pytest.raises(SystemExit) as caught:
        main(["models", "list", "--json"])
    assert caught.value.code == 0 and capsys.readouterr().out.strip() == "[]"


def test_brackets_are_printed_verbatim_and_non_ascii_escaped(tmp_path):
    from navi_core.config import CompileConfig
    from navi_core.scenes import compile_mesh, generate_scene

    mesh = generate_scene("maze", 0)
    scene = compile_mesh(mesh, CompileConfig(resolution=64))
    object.__setattr__(scene, "name", "[bold]ü[/nope]")
    path = scene.save(tmp_path / "a.gmdag")
    done = subprocess.run(
        [sys.executable, "-c", "from navi_core.cli.main import main; main()", "scenes", "inspect", str(path)],
        env=os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "[bold]\\xfc[/nope]" in done.stdout, done.stderr
