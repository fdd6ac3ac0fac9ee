"""Collectors of the interfaces: wire, SQL, metrics, settings, presets, commands, environments, exit codes.

Each collector returns plain data that names no Python class or module, unless users write that name themselves.
"""

from __future__ import annotations

import re
import struct
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from navi_core import errors
from navi_core.cli import main
from navi_core.config import EnvConfig, EvalConfig, TrainConfig
from navi_core.config.evaluate import ExpertConfig
from navi_core.config.service import EnvironmentConfig, ExplorerConfig, ServeConfig
from navi_core.presets import preset_names, resolve_config
from navi_core.service.viewing.digest import LAYOUTS, SERVICE_LAYOUTS
from navi_core.service.wire import WIRE_VERSION, encode
from navi_pipeline.settings import AblationConfig, NightlyConfig, StudyConfig, SweepConfig
from tests.snapshots.runs import documents, metrics

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "train": TrainConfig,
    "serve": ServeConfig,
    "nightly": NightlyConfig,
    "study": StudyConfig,
    "ablation": AblationConfig,
    "sweep": SweepConfig,
    "evaluate": EvalConfig,
    "environment": EnvironmentConfig,
    "gymnasium": EnvConfig,
    "expert": ExpertConfig,
    "explore": ExplorerConfig,
}
"""Configuration that users write, by what reads it."""


def wire() -> dict[str, Any]:
    """Return each message as it travels: topic, fields in order, types, and the whole payload of a sample."""
    import msgpack

    from tests.service.wire_samples import all_messages

    def kind(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: kind(item) for name, item in value.items()}
        if isinstance(value, list):
            return [kind(item) for item in value]
        if isinstance(value, msgpack.ExtType):
            length = struct.unpack_from("<H", value.data)[0]
            axes = struct.unpack_from("<H", value.data, 2 + length)[0]
            shape = struct.unpack_from(f"<{axes}q", value.data, 4 + length)
            return f"extension {value.code}: {value.data[2 : 2 + length].decode()} {list(shape)}"
        return type(value).__name__

    found: dict[str, Any] = {"version": WIRE_VERSION, "telemetry": LAYOUTS | SERVICE_LAYOUTS}
    for message in all_messages():
        topic, payload = encode(message)
        content = msgpack.unpackb(payload)
        name = content["_type"]
        found.setdefault(name, []).append({"topic": topic.decode(), "order": list(content), "fields": kind(content)})
    return found


def sql() -> dict[str, Any]:
    """Return the columns of every table and view of an empty warehouse, and the saved queries."""
    from navi_pipeline.lib.warehouse.warehouse import Warehouse

    with tempfile.TemporaryDirectory() as home:
        warehouse = Warehouse(home)
        warehouse.ingest()
        rows = warehouse.query(
            "select c.table_name as part, column_name as name, data_type as type, table_type as kind "
            "from information_schema.columns c join information_schema.tables t using (table_schema, table_name) "
            "order by part, ordinal_position"
        )
    parts: dict[str, Any] = {"BASE TABLE": {}, "VIEW": {}}
    for row in rows.to_dict("records"):
        parts[row["kind"]].setdefault(row["part"], []).append(f"{row['name']} {row['type']}")
    queries = sorted(file.stem for file in (ROOT / "sql" / "queries").glob("*.sql"))
    return {"tables": parts["BASE TABLE"], "views": parts["VIEW"], "queries": queries}


def settings() -> dict[str, Any]:
    """Return every settings path of every configuration with its default, type and bounds."""
    return {root: dict(_paths(cls.model_json_schema())) for root, cls in SETTINGS.items()}


def _paths(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield path and plain schema of each setting; a section's own default replaces those of its settings."""

    def plain(node: Any) -> Any:
        if isinstance(node, list):
            return [plain(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]] | {k: v for k, v in node.items() if k != "$ref"}
        kept = {}
        for key, value in node.items():
            if key in ("default", "const", "enum", "required"):
                kept[key] = value
            elif key == "properties":
                kept[key] = {name: plain(item) for name, item in value.items()}
            elif key not in ("title", "description", "$defs", "discriminator"):
                kept[key] = plain(value)
        return kept

    def flat(node: dict[str, Any], path: str, given: Any) -> Iterator[tuple[str, Any]]:
        if "properties" in node:
            section = node.get("default", {}) | (given or {})
            for name, item in node["properties"].items():
                default = {"default": section[name]} if name in section else {}
                yield from flat(item | default, f"{path}.{name}" if path else name, section.get(name))
        else:
            yield path, node

    return flat(plain(schema), "", None)


def presets() -> dict[str, Any]:
    """Return the resolved configuration of each preset."""
    return {name: resolve_config(preset=name, environ={}).model_dump(mode="json") for name in preset_names()}


def commands() -> dict[str, Any]:
    """Return arguments, options and defaults of every command, and the console scripts."""
    import typer

    def option(each: Any) -> str:
        names = " ".join([*each.opts, *(f"/ {name}" for name in each.secondary_opts)])
        if not names.startswith("-"):
            names = "argument"
        marks = [mark for mark in ("required", "multiple", "is_flag", "hidden") if getattr(each, mark, False)]
        count = f" × {each.nargs}" if each.nargs != 1 else ""
        return f"{names}{count} = {_stable(each.default)}" + (f" ({', '.join(marks)})" if marks else "")

    def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        inner = {}
        if hasattr(command, "list_commands"):
            context = typer.Context(command)
            inner = {name: command.get_command(context, name) for name in command.list_commands(context)}
        if not inner:
            yield path, [option(each) for each in command.params] + (["hidden"] if command.hidden else [])
        for name, each in inner.items():
            yield from walk(each, f"{path} {name}")

    apps: list[Any] = []
    with patch.object(main, "_run", lambda app, _: apps.append(app)):
        for script in (main.main, main.navi_actor, main.brain):
            script([])
    found: dict[str, Any] = {}
    for app in apps:
        found |= dict(walk(typer.main.get_command(app), app.info.name))
    return found


def _stable(value: Any) -> str:
    """Return a default as text; paths of this machine do not occur in it."""
    return str(value if not callable(value) else "computed")


def names() -> dict[str, Any]:
    """Return the names that others write down: scripts, entry points, gymnasium ids, variables, exit codes."""
    import gymnasium

    import navi_core.world.gym_adapter  # noqa: F401

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sources = "".join(
        file.read_text() for room in ("navi_core", "navi_pipeline") for file in sorted((ROOT / room).rglob("*.py"))
    )
    raised = (each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.NaviError))
    codes = {each.__name__: each.exit_code for each in raised}
    return {
        "console_scripts": sorted(project["scripts"]),
        "entry_points": {group: sorted(entries) for group, entries in project["entry-points"].items()},
        "extras": sorted(project["optional-dependencies"]),
        "gymnasium": [f"navi_core.world.gym_adapter:{name}" for name in gymnasium.registry if name.startswith("Navi/")],
        "environment_variables": sorted(set(re.findall(r"[\"'](NAVI_[A-Z_]*[A-Z])[\"']", sources))),
        "exit_codes": codes,
    }


INTERFACES: dict[str, Callable[[], Any]] = {
    "wire": wire,
    "sql": sql,
    "settings": settings,
    "presets": presets,
    "commands": commands,
    "names": names,
    "metrics": metrics,
    "documents": documents,
}
"""Collector of each snapshot file."""
