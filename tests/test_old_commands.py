"""Command lines: the source systems' spellings reach Navi's commands; no option takes an option as its value."""

from __future__ import annotations

import re

import pytest
import typer

from navi_core.cli.aliases import actor_arguments, brain_arguments
from navi_core.cli.main import build_app
from navi_core.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "rewritten"),
    [
        ("", "serve"),
        ("--sub tcp://127.0.0.1:5559 --mode step", "serve --sub tcp://127.0.0.1:5559 --mode step"),
        ("--help", "--help"),
        ("--version", "--version"),
        ("serve v001", "serve v001"),
        ("models", "models list"),
        ("models --json", "models list --json"),
        ("models --help", "models --help"),
        ("models show v001", "models show v001"),
        ("promote there/step-000000064.pt", "models register there/step-000000064.pt"),
        ("promote v002 --alias canary", "promote v002 --alias canary"),
        ("evaluate models", "evaluate models"),
    ],
)
def test_brain_spellings_are_rewritten(given, rewritten):
    assert brain_arguments(given.split()) == rewritten.split()


@pytest.mark.parametrize(
    ("given", "rewritten"),
    [
        ("train", "train ppo"),
        ("train --actors 4", "train ppo --actors 4"),
        ("train grpo --actors 4", "train grpo --actors 4"),
        ("train --help", "train --help"),
        ("serve --mode step", "serve --mode step"),
        ("", ""),
    ],
)
def test_bare_train_of_navi_actor_is_ppo(given, rewritten):
    assert actor_arguments(given.split()) == rewritten.split()


def _commands(command, path=()):
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    context = typer.Context(command)
    for name in command.list_commands(context):
        yield from _commands(command.get_command(context, name), (*path, name))


def test_help_shows_every_unit():
    """The renderer of help takes `[s]` for markup and prints nothing."""
    swallowed = re.compile(r"\[[A-Za-z/²%·]+\]")
    texts = [(path, command.help or "") for path, command in _commands(typer.main.get_command(build_app()))]
    for path, command in _commands(typer.main.get_command(build_app())):
        texts += [((*path, option.name), getattr(option, "help", None) or "") for option in command.params]
    assert [path for path, text in texts if swallowed.search(text)] == [] and len(texts) > 400


def test_no_option_of_any_command_takes_an_option_as_its_value():
    checked = 0
    for path, command in _commands(typer.main.get_command(build_app())):
        for option in command.params:
            if getattr(option, "is_flag", True) or (path, option.opts) == (("explore",), ["--record"]):
                continue
            for name in option.opts:
                with pytest.raises(ConfigError, match=f"^{name} has no value: --else follows"):
                    command.make_context("navi", [name, "--else"])
                checked += 1
    assert checked > 400


def test_negative_numbers_and_values_after_an_equals_sign_are_taken():
    (explore,) = (command for path, command in _commands(typer.main.get_command(build_app())) if path == ("explore",))
    context = explore.make_context("navi", ["--seed", "-3", "--record=--odd", "--", "--scene-of-that-name"])
    assert context.params["seed"] == -3 and str(context.params["record"]) == "--odd"
    assert context.params["scene"] == ["--scene-of-that-name"]


def test_record_without_a_folder_is_the_recordings_folder_of_the_home(tmp_path, monkeypatch):
    (explore,) = (command for path, command in _commands(typer.main.get_command(build_app())) if path == ("explore",))
    monkeypatch.setenv("NAVI_HOME", str(tmp_path))
    for words in (["--record", "--gmdag-file", "x.gmdag"], ["--gmdag-file", "x.gmdag", "--record"]):
        params = explore.make_context("navi", words).params
        assert params["record"] == tmp_path / "recordings" and [str(file) for file in params["gmdag_file"]] == [
            "x.gmdag"
        ]
    monkeypatch.setenv("NAVI_DEMOS", str(tmp_path / "mine"))
    assert explore.make_context("navi", ["--record"]).params["record"] == tmp_path / "mine"
