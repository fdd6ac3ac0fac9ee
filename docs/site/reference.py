"""Pages of the reference that are generated from the code: commands, settings, errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table; cells keep to one line."""
    head = list(head)

    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])


def code(text: object) -> str:
    """Return a text in code type; an empty one stays empty."""
    return f"`{text}`" if str(text) else ""


def pages() -> dict[str, str]:
    """Return the pages of commands, settings and errors."""
    return {"reference/index.md": _INDEX, **_commands(), **_settings(), "reference/errors.md": _errors()}


_INDEX = """# Reference

These pages are for looking things up. Commands, settings, Python names, tables, assets and errors are generated from
the code, so they are those of the version that you read.

| you look for | page |
|---|---|
| a command, its options and defaults | [Commands](cli/index.md) |
| a setting, its default and allowed values | [Settings](settings/train.md) |
| a class or a function | [Python](python/navi_core.world.md) |
| a table, a column, a saved query | [Tables, views and queries](sql.md) |
| an asset, a check, a job | [Assets, checks and jobs](assets.md) |
| an exit code | [Errors and exit codes](errors.md) |
"""


# Commands.


def _commands() -> dict[str, str]:
    import typer

    from navi_core.cli.catalogue import OLD_NAMES, PANELS
    from navi_core.cli.main import build_app

    root = typer.main.get_command(build_app())
    context = typer.Context(root)
    shown = [name for name in root.list_commands(context) if not root.get_command(context, name).hidden]  # type: ignore[attr-defined]
    found = {}
    index = ["# Commands", "`navi COMMAND --help` shows the same in a terminal. `-h` is short for `--help`."]
    for panel, commands in PANELS.items():
        rows = [(f"[`navi {name}`]({name}.md)", meaning) for name, meaning in commands.items() if name in shown]
        index += [f"## {panel}", table(("command", "purpose"), rows)]
    old = [(code(f"navi {name}"), code(f"navi {new}")) for name, new in OLD_NAMES.items()]
    index += ["## Old names", "Old names keep working and are hidden in the help.", table(("old", "new"), old)]
    found["reference/cli/index.md"] = "\n\n".join(index) + "\n"
    for name in shown:
        sections = _command(root.get_command(context, name), f"navi {name}", 1)  # type: ignore[attr-defined]
        found[f"reference/cli/{name}.md"] = "\n\n".join(sections) + "\n"
    return found


def _command(command: Any, path: str, level: int) -> Iterator[str]:  # noqa: ANN401 - typer's click is private
    """Yield the sections of a command and those of its inner commands."""
    import typer

    yield f"{'#' * level} {path}"
    yield _help(command.help or "")
    context = typer.Context(command)
    inner = [command.get_command(context, name) for name in getattr(command, "list_commands", lambda _: ())(context)]
    rows = []
    for each in command.params:
        if getattr(each, "hidden", False) or "--help" in each.opts:
            continue
        words = ", ".join([*each.opts, *each.secondary_opts]) if each.opts[0].startswith("-") else each.name.upper()
        rows.append((code(words), _default(each), _help(getattr(each, "help", "") or "")))
    if not inner:
        yield f"```\n{path} {' '.join(command.collect_usage_pieces(context))}\n```"
    if rows:
        yield table(("argument or option", "default", "meaning"), rows)
    for each in inner:
        if not each.hidden:
            yield from _command(each, f"{path} {each.name}", level + 1)


def _default(parameter: Any) -> str:  # noqa: ANN401 - typer's click is private
    if parameter.required:
        return "required"
    default = parameter.default
    if default is None or default == () or default == [] or getattr(parameter, "is_flag", False):
        return "on" if default is True and parameter.secondary_opts else ""
    if callable(default):
        return "computed"
    return code(", ".join(map(str, default)) if isinstance(default, (list, tuple)) else default)


def _help(text: str) -> str:
    """Return a help text as Markdown: placeholders in angle brackets are no tags."""
    return re.sub(r"<(?=\w)", "&lt;", re.sub(r"\f.*", "", text, flags=re.S)).strip()


# Settings.


def _settings() -> dict[str, str]:
    from navi_core.config import EnvConfig, EvalConfig, TrainConfig, parse_config
    from navi_core.config.base import settings_of
    from navi_core.config.evaluate import ExpertConfig
    from navi_core.config.service import EnvironmentConfig, ExplorerConfig, ServeConfig
    from navi_pipeline.settings import AblationConfig, NightlyConfig, StudyConfig, SweepConfig

    classes = {
        "train": (TrainConfig, "Settings of `navi train` and of every training in the graph."),
        "evaluate": (EvalConfig, "Settings of `navi evaluate` and `navi compare`."),
        "expert": (ExpertConfig, "Settings of `navi demos expert`."),
        "explore": (ExplorerConfig, "Settings of `navi explore`."),
        "serve": (ServeConfig, "Settings of `navi serve`."),
        "environment": (EnvironmentConfig, "Settings of `navi environment`."),
        "gymnasium": (EnvConfig, "Settings of the gymnasium environments."),
        "nightly": (NightlyConfig, "Settings of `navi pipeline nightly`."),
        "study": (StudyConfig, "Settings of a study."),
        "sweep": (SweepConfig, "Settings of a sweep."),
        "ablation": (AblationConfig, "Settings of an ablation."),
    }
    found = {}
    for name, (cls, meaning) in classes.items():
        parts = [f"# Settings: {name}", f"{meaning} Give one by `--set NAME=VALUE` where the command takes `--set`."]
        config = parse_config(cls, {}) if not any(each.is_required() for each in cls.model_fields.values()) else None
        rows: dict[str, list[tuple[str, ...]]] = {}
        for each in settings_of(config) if config else ():
            row = (code(each.name), code(each.default_text), each.allowed, *_meaning_and_unit(each.meaning))
            rows.setdefault(each.name.rpartition(".")[0], []).append(row)
        if config is None:
            rows[""] = [
                (
                    code(key),
                    "required" if field.is_required() else code(field.default),
                    "",
                    *_meaning_and_unit(field.description or ""),
                )
                for key, field in cls.model_fields.items()
            ]
        for section, held in rows.items():
            parts += [f"## {section}"] if section else []
            parts.append(table(("setting", "default", "allowed", "meaning", "unit"), held))
        found[f"reference/settings/{name}.md"] = "\n\n".join(parts) + "\n"
    return found


def _meaning_and_unit(text: str) -> tuple[str, str]:
    """Split a description at its unit in square brackets."""
    meaning, unit = re.sub(r"\s*\[([^\]\s,]+)\]", "", text), re.search(r"\[([^\]\s,]+)\]", text)
    return (meaning, unit[1]) if unit else (text, "")


# Errors.


def _errors() -> str:
    from navi_core import errors

    classes = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.NaviError)]
    rows = [
        (code(each.exit_code), code(each.__name__), " ".join((each.__doc__ or "").split("\n\n")[0].split()))
        for each in sorted(classes, key=lambda each: each.exit_code)
    ]
    return f"""# Errors and exit codes

This page is for scripts that call Navi and for readers of an error line. Navi prints an expected error as `error:`,
the allowed values, and `next:` with a command. A wrong command line ends with exit code 2.
A command that is stopped by Ctrl-C ends with 130. The classes lie in `navi_core.errors`.

{table(("exit code", "class", "meaning"), rows)}
"""
