"""Presets of settings, and the merge of all configuration sources by precedence.

Defaults < shipped preset < what learner and task want < preset file < configuration file < `NAVI_*` environment <
flags and `--set a.b=c`.

Environment names: `NAVI_ACTOR_ENCODER_BACKEND` and `NAVI_ACTOR_TEMPORAL_CORE` select the network;
any other setting is `NAVI_` and its path in capitals with two underscores for each dot
(`NAVI_PPO__LEARNING_RATE=0.001`), top-level ones without (`NAVI_ACTORS=8`).

YAML for settings has plain values, every key once, and no aliases, which a small file can multiply without end. Words
and numbers have their YAML 1.2 meaning (core schema, section 10.3.2). The library follows YAML 1.1, in which `off` is a
boolean, `010` is eight, `1:30` is ninety and a date is a day.
"""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.config import TrainConfig, parse_config
from navi_core.config.base import nearest_key, setting_paths
from navi_core.config.readers import given_names, unread
from navi_core.errors import ConfigError, did_you_mean, whole_number

if TYPE_CHECKING:
    import yaml

__all__ = [
    "environment_overrides", "load_preset", "merge", "merge_sources", "parse_assignments", "parse_sections",
    "preset_names", "preset_values", "read_config_file", "resolve_config", "setting_sources",
]  # fmt: skip

_FOLDER = Path(__file__).parent
_SELECTORS = {
    "NAVI_ACTOR_ENCODER_BACKEND": ("policy", "encoder"),
    "NAVI_ACTOR_TEMPORAL_CORE": ("policy", "core"),
}


def preset_names() -> tuple[str, ...]:
    """Return the names of the built-in presets."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.yaml")))


def load_preset(name: str, overrides: Mapping[str, Any] | None = None) -> TrainConfig:
    """Load a preset as a validated training configuration.

    Args:
        name: One of `preset_names()`.
        overrides: Nested plain values that win over the preset's.

    Raises:
        ConfigError: There is no such preset (the nearest is named), or a value is impossible.
    """
    return resolve_config(preset=name, environ={}, flags=overrides)


def resolve_config(
    *,
    preset: str | None = None,
    defaults: Mapping[str, Any] | None = None,
    file: Path | str | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    assignments: Iterable[str] = (),
    command: str | None = None,
    strict: bool = False,
) -> TrainConfig:
    """Merge all configuration sources by precedence into a validated training configuration.

    With `command`, each part that would read given settings which this run does not read gets one warning. Settings of
    presets and of stored runs are exempt.

    Args:
        preset: Preset name; None starts from the defaults.
        defaults: Nested values that a task wants instead of a shipped preset's, where nothing else names them.
        file: YAML or JSON file.
        environ: Environment; by default the process's.
        flags: Nested values of command-line flags.
        assignments: `a.b=c` texts of `--set`; they win over everything.
        command: The command that runs it, as in `navi_core.config.readers`; None warns of nothing.
        strict: Refuse settings that are not read.

    Raises:
        ConfigError: A key is unknown (the nearest is named), a value impossible, or a file unreadable; with `strict`
            also, a given setting is not read.
    """
    sources = setting_sources(
        preset=preset, defaults=defaults, file=file, environ=environ, flags=flags, assignments=assignments
    )
    config = parse_config(TrainConfig, merge_sources(sources))
    if command is not None:
        given = _given(sources)
        if sources[-1][0] == _IMPLIED:
            keys = ", ".join(given["early_stopping"])
            warnings.warn(
                f"early_stopping.{{{keys}}} is given: early stopping is on; early_stopping.enabled=false keeps it off",
                stacklevel=2,
            )
        faults = unread(config, given_names(given), command, _auto_device)
        if strict and faults:
            raise ConfigError(f"{'; '.join(faults)}. Leave it out, or run without --strict")
        for fault in faults:
            warnings.warn(fault, stacklevel=2)
    return config


def _auto_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def setting_sources(
    *,
    preset: str | None = None,
    defaults: Mapping[str, Any] | None = None,
    file: Path | str | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    assignments: Iterable[str] = (),
) -> list[tuple[str, dict[str, Any]]]:
    """Return the configuration sources that `resolve_config` merges: (name, nested values), strongest last.

    Raises:
        ConfigError: As `resolve_config`, but for values, which nobody has looked at yet.
    """
    chosen = [] if preset is None else [(f"preset {preset}", preset_values(preset))]
    task = [("task", dict(defaults or {}))]
    # A user-defined preset, a study's best settings, was meant as it stands.
    sources = chosen + task if preset is None or preset in preset_names() else task + chosen
    if file is not None:
        sources.append((str(file), read_config_file(file)))
    sources.append(("NAVI_*", environment_overrides(os.environ if environ is None else environ)))
    sources += [("flags", dict(flags or {})), ("--set", parse_assignments(assignments))]
    if preset in preset_names() and merge_sources(sources).get("algorithm") == "dqn":
        # Shipped presets are made for an actor and a critic.
        sources.insert(1, ("learner", {"policy": {"privileged_critic": False}}))
    # Configuration files of AGM have no switch: their section asks for early stopping.
    merged = merge_sources(sources)
    stopping, adaptation = merged.get("early_stopping"), merged.get("adaptation")
    switched = (isinstance(stopping, Mapping) and "enabled" in stopping) or merged.get("algorithm") == "bc"
    adapts = isinstance(adaptation, Mapping) and adaptation.get("enabled") and merged.get("algorithm") == "dqn"
    if isinstance(_given(sources).get("early_stopping"), Mapping) and not switched and not adapts:
        sources.append((_IMPLIED, {"early_stopping": {"enabled": True}}))
    return sources


_IMPLIED = "early_stopping.…"
"""Name of the source that switches early stopping on where only other settings of its section are given."""


def _given(sources: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the nested settings that a user gave: without those of presets, of the task and of stored runs."""
    exempt = ("task", "learner", _IMPLIED)
    sections = TrainConfig().model_dump().keys()
    return merge_sources(
        (name, values)
        for name, values in sources
        if not name.startswith("preset ") and name not in exempt and not sections <= values.keys()
    )


def merge_sources(sources: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Merge named configuration sources into nested values; later ones override earlier ones."""
    nothing: dict[str, Any] = {}
    return reduce(merge, (values for _, values in sources), nothing)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Deep-merge nested settings: `over` overrides `base`, section by section; neither is changed.

    The families of a corpus and the reward weights are values, not sections: they are replaced whole.
    """
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        section = isinstance(value, Mapping) and isinstance(below, Mapping) and key not in ("families", "weights")
        result[key] = merge(below, value) if section else value  # type: ignore[arg-type]
    return result


def read_config_file(path: Path | str) -> dict[str, Any]:
    """Load nested settings from a YAML or JSON file, such as a run directory's config.json.

    Raises:
        ConfigError: The file is missing, unreadable, or not a mapping.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text: {error}") from error
    try:
        data = read_yaml(text)
    except ConfigError as error:
        raise ConfigError(f"{path} {error}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds {type(data).__name__}; expected a mapping of settings")
    if data.get("config_class") == "TrainConfig" and isinstance(data.get("config"), dict):
        config: dict[str, Any] = data["config"]
        return config
    return data


def environment_overrides(environ: Mapping[str, str]) -> dict[str, Any]:
    """Parse the settings in `NAVI_*` environment variables.

    Raises:
        ConfigError: A variable with `__` in its name is no setting; the nearest is named.
    """
    result: dict[str, Any] = {}
    known = {"NAVI_" + "__".join(path).upper(): path for path in setting_paths(TrainConfig)} | _SELECTORS
    for name in sorted(environ):
        if not name.startswith("NAVI_") or environ[name] == "":
            continue
        path = known.get(name)
        if path is None:
            # Other NAVI_* names (home, scenes, …) are not settings; a path is, and may be mistyped.
            if "__" in name:
                section, _, key = name.rpartition("__")
                keys = {each.rpartition("__")[2].lower(): each for each in known if each.startswith(f"{section}__")}
                near = keys.get(nearest_key(key, list(keys)) or "")
                near = near or next(iter(difflib.get_close_matches(name, known, n=1)), None)
                hint = f"; did you mean {near}?" if near else ""
                raise ConfigError(f"the environment variable {name} names no setting{hint}")
            continue
        result = merge(result, nested(path, _value(environ[name])))
    return result


def parse_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Parse `a.b=c` assignments into nested settings; values are YAML (`null`, `3`, `[1, 2]`, `true`), or 1e5, 2.5M.

    Raises:
        ConfigError: A text has no `=` or an empty key, or YAML takes its `{name:value}` for one long name.
    """
    result: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        path = tuple(part.strip() for part in key.split("."))
        if not equals or not all(path):
            raise ConfigError(f"--set {text!r} is not of the form a.b=c, for example ppo.learning_rate=0.001")
        parsed = _value(value)
        if isinstance(parsed, dict) and any(v is None and ":" in str(name) for name, v in parsed.items()):
            raise ConfigError(f"--set {text!r}: a colon wants a space behind it, for example {{clearance: 0.5}}")
        result = merge(result, nested(path, parsed))
    return result


def preset_values(name: str) -> dict[str, Any]:
    """Load a preset's nested settings, without validation of the whole.

    Args:
        name: One of `preset_names()`, or a preset file (`.yaml`, `.yml`, `.json`), such as a study's best trial.

    Raises:
        ConfigError: There is no such preset (the nearest is named), or its file cannot be read.
    """
    if Path(name).suffix in (".yaml", ".yml", ".json"):
        return read_config_file(name)
    if name not in preset_names():
        hint = did_you_mean(name, preset_names())
        raise ConfigError(f"no preset {name!r}; {hint}allowed: {', '.join(preset_names())}, or a .yaml file")
    return read_config_file(_FOLDER / f"{name}.yaml")


def nested(path: Sequence[str], value: object) -> dict[str, Any]:
    """Build nested dictionaries with a value at the given key path."""
    return {path[0]: nested(path[1:], value) if len(path) > 1 else value}


def _value(text: str) -> object:
    try:
        return read_yaml(text) if (number := whole_number(text)) is None else number
    except ConfigError:
        return text  # the field's own check reports what is expected


def parse_sections(assign: Iterable[str] | None, allowed: Sequence[str], example: str) -> dict[str, Any]:
    """Parse `--set` assignments into nested settings, limited to the allowed sections.

    Args:
        assign: Texts `a.b=c`; None where none was given.
        allowed: Names of the sections.
        example: What the error shows as right.

    Raises:
        ConfigError: A text is of another section, which is named, or of another form.
    """
    given = parse_assignments(assign or ())
    unknown = sorted(given.keys() - set(allowed))
    if unknown:
        known = " and ".join(f"{name}.…" for name in allowed)
        raise ConfigError(f"--set {', '.join(unknown)}; only {known} can be set here: {example}")
    return given


_PLAIN = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
"""What a plain scalar is, by tag: the first whose pattern it is as a whole; and the characters it may begin with."""


def read_yaml(text: str) -> object:
    """Parse restricted YAML text into a plain value.

    Raises:
        ConfigError: It is not YAML, has a key twice, an alias, a tag, too long a number, or is nested too deep; the
            line is named where there is one.
    """
    import yaml

    try:
        value: object = yaml.load(text, Loader=_loader())  # a SafeLoader: plain values only
        return value
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError("is not YAML: it is nested too deep") from None


def write_yaml(value: object) -> str:
    """Format a value as YAML that `read_yaml` parses back: words that look like numbers are quoted."""
    import yaml

    return yaml.dump(value, Dumper=_dumper(), sort_keys=False)


@cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: dict[str, Any] = {}

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()  # type: ignore[no-untyped-call]
                raise yaml.composer.ComposerError(None, None, f"alias *{event.anchor}: write it out", event.start_mark)
            event = self.peek_event()  # type: ignore[no-untyped-call]
            if getattr(event, "tag", None) is not None:
                raise yaml.composer.ComposerError(None, None, f"the tag {event.tag}: leave it out", event.start_mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                # Another way to write the same number is the same key.
                name = self.construct_object(key) if isinstance(key, yaml.ScalarNode) else None
                if name in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {name!r} occurs twice", key.start_mark
                    )
                seen |= set() if name is None else {name}
            return super().construct_mapping(node, deep)

        def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
            text = self.construct_scalar(node)
            return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    _resolve(Loader)
    return Loader


@cache
def _dumper() -> type[yaml.SafeDumper]:
    import yaml

    class Dumper(yaml.SafeDumper):
        yaml_implicit_resolvers: dict[str, Any] = {}

    _resolve(Dumper)
    return Dumper


def _resolve(kind: type[yaml.SafeLoader] | type[yaml.SafeDumper]) -> None:
    for name, (pattern, first) in _PLAIN.items():
        kind.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(f"({pattern})\\Z"), first)
