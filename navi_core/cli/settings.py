"""`navi settings`: list the configuration settings with value, source, allowed values and meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navi_core.cli import completion
from navi_core.errors import ConfigError, did_you_mean
from navi_core.terminal import print_json, print_table

if TYPE_CHECKING:
    from navi_core.config import Config
    from navi_core.config.base import Setting

Sources = Sequence[tuple[str, Mapping[str, Any]]]
_ABSENT = object()


def _serve_settings() -> type[Config]:
    from navi_core.config.service import ServeConfig

    return ServeConfig


_CLASSES: dict[str, Callable[[], type[Config]]] = {"serve": _serve_settings}
"""Lazy loaders of the configuration classes by `--of` name, besides that of training."""


def add_settings(name: str, load: Callable[[], type[Config]]) -> None:
    """Register the configuration class of another package for `navi settings --of NAME`."""
    _CLASSES[name] = load


app = typer.Typer()


@app.command()
def settings(
    what: Annotated[
        str | None,
        typer.Argument(help="A section (ppo, env.reward), a setting, or a word that its name or meaning holds."),
    ] = None,
    of: Annotated[
        str, typer.Option("--of", help="Command: train, serve (settings of `navi serve --set`), or nightly.")
    ] = "train",
    preset: Annotated[str | None, typer.Option(help="Preset to show.", autocompletion=completion.presets)] = None,
    file: Annotated[
        Path | None, typer.Option("--config", help="File of settings to apply, or a run's config.json.")
    ] = None,
    assign: Annotated[list[str] | None, typer.Option("--set", help="Setting to apply, a.b=c; may be repeated.")] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that differ from the defaults.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """List configuration settings: value, source, allowed values, meaning.

    Without arguments: the sections. A setting is given by --set a.b=c; those of train also by a line of a --config
    file, or by the environment, NAVI_A__B=c.
    """
    from navi_core.config.base import settings_of

    config, sources = _resolve(of, preset, file, assign or ())
    every = settings_of(config)
    found = every if what is None else _matching(every, what)
    shown = [each for each in found if each.changed] if changed else found
    title = f"settings of {of}" + (f", preset {preset}" if preset else "") + (f", {file}" if file else "")
    if as_json:
        print_json({"settings": [_row(each, sources) for each in shown]})
    elif what is None and not changed:
        _print_sections(every, config, title)
    elif not shown:
        typer.echo("none differs from the defaults")
    else:
        _print_settings(shown, sources, title)


def _resolve(of: str, preset: str | None, file: Path | None, assign: Sequence[str]) -> tuple[Config, Sources]:
    """Resolve the configuration that `--of` names; return it with its sources, lowest precedence first."""
    from navi_core.config import TrainConfig, parse_config
    from navi_core.presets import merge_sources, parse_assignments, read_config_file, setting_sources

    if of == "train":
        given = setting_sources(preset=preset, file=file, assignments=assign)
        return parse_config(TrainConfig, merge_sources(given)), given
    if of not in _CLASSES:
        hint = did_you_mean(of, ("train", *_CLASSES))
        raise ConfigError(f"--of {of}: no such settings; {hint}allowed: train, {', '.join(_CLASSES)}")
    if preset is not None:
        raise ConfigError(f"--preset is for the settings of train; those of {of} have none. Leave it out")
    if file is not None and of == "serve":
        raise ConfigError(
            "--config is for the settings of train and nightly; navi serve takes --set alone. Leave it out"
        )
    sources = [] if file is None else [(str(file), read_config_file(file))]
    sources.append(("--set", parse_assignments(assign)))
    return parse_config(_CLASSES[of](), merge_sources(sources)), sources


def _matching(every: Sequence[Setting], what: str) -> list[Setting]:
    """Filter settings by section, by exact name, or by a word in name or meaning."""
    exact = [each for each in every if each.name == what or each.name.startswith(f"{what}.")]
    if exact:
        return exact
    word = what.lower()
    found = [each for each in every if word in each.name.lower() or word in each.meaning.lower()]
    if not found:
        names = {part for each in every for part in (each.name, each.name.rpartition(".")[2], each.name.split(".")[0])}
        hint = did_you_mean(word, sorted(names))
        raise ConfigError(f"no setting has {what!r} in its name or meaning; {hint}`navi settings` lists the sections")
    return found


def _source(setting: Setting, sources: Sources) -> str:
    """Return the source of a setting's value (preset, file, flag); empty for the default."""
    for name, values in reversed(sources):
        below: Any = values
        for part in setting.name.split("."):
            below = below.get(part, _ABSENT) if isinstance(below, Mapping) else _ABSENT
        if below is not _ABSENT:
            return name
    return "follows from others" if setting.changed else ""


def _row(setting: Setting, sources: Sources) -> dict[str, Any]:
    return {
        "name": setting.name,
        "value": setting.value,
        "default": setting.default,
        "from": _source(setting, sources) or "default",
        "allowed": setting.allowed,
        "meaning": setting.meaning,
    }


def _print_settings(shown: Sequence[Setting], sources: Sources, title: str) -> None:
    rows = []
    for each in shown:
        origin = f"\n({_source(each, sources)}; default {each.default_text})" if each.changed else ""
        rows.append((each.name, each.text + origin, each.allowed, each.meaning))
    print_table(title, ("name", "value", "allowed", "meaning"), rows)


def _print_sections(every: Sequence[Setting], config: Config, title: str) -> None:
    """Print the top-level settings, and one line for each section."""
    alone = {each.name: each for each in every if "." not in each.name}
    rows = []
    for name, field in type(config).model_fields.items():
        if name in alone:
            rows.append((name, alone[name].text, alone[name].meaning))
            continue
        inside = [each for each in every if each.name.startswith(f"{name}.")]
        moved = sum(each.changed for each in inside)
        count = f"{len(inside)} settings" + (f", {moved} changed" if moved else "")
        rows.append((f"{name}.…", count, " ".join((field.description or "").split())))
    hint = "`navi settings NAME` lists a section; another word is searched for in names and meanings"
    print_table(title, ("name", "value", "meaning"), rows, caption=hint)
