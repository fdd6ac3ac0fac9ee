"""Settings of a configuration: name, value, allowed values and meaning."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pydantic_core import to_jsonable_python

from navi_core.config.base import Config

_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "null": "null",
    "object": "{name: value, …}",
    "array": "[a, b, …]",
}
_BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}


@dataclass(frozen=True)
class Setting:
    """One setting as it stands.

    Attributes:
        name: Its place, `ppo.clip`.
        value: Plain data, as a configuration file has it.
        default: Its default.
        allowed: In words.
        meaning: What it is for.
    """

    name: str
    value: Any
    default: Any
    allowed: str
    meaning: str

    @property
    def changed(self) -> bool:
        """Whether it differs from the default."""
        return bool(self.value != self.default)

    @property
    def text(self) -> str:
        """The value as `--set` takes it."""
        return _typed(self.value)

    @property
    def default_text(self) -> str:
        """The default as `--set` takes it."""
        return _typed(self.default)


def setting_paths(cls: type[Config]) -> list[tuple[str, ...]]:
    """Return the places of all settings of a configuration class, in the order in which it declares them."""
    found: list[tuple[str, ...]] = []
    for name, info in cls.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, Config):
            found += [(name, *path) for path in setting_paths(kind)]
        else:
            found.append((name,))
    return found


def settings_of(config: Config) -> list[Setting]:
    """Return the settings of a configuration, in the order in which its class declares them."""
    usual = type(config)()
    schemas: dict[type[Config], dict[str, Any]] = {}
    found = []
    for path in setting_paths(type(config)):
        section: Any = reduce(getattr, path[:-1], config)
        cls = type(section)
        if cls not in schemas:
            schemas[cls] = cls.model_json_schema()
        schema = schemas[cls]
        field = schema["properties"][path[-1]]
        value, default = (to_jsonable_python(reduce(getattr, path, holder)) for holder in (config, usual))
        # Docstrings speak Python, files and --set YAML.
        meaning = re.sub(r"\bNone\b", "null", " ".join(field.get("description", "").split()))
        found.append(Setting(".".join(path), value, default, _allowed(field, schema.get("$defs", {})), meaning))
    return found


def _allowed(node: Mapping[str, Any], kinds: Mapping[str, Any]) -> str:
    """Describe the values that a node of a JSON schema takes."""
    if "$ref" in node:
        return _allowed(kinds[node["$ref"].rpartition("/")[2]], kinds)
    if "anyOf" in node:
        return " or ".join(dict.fromkeys(_allowed(each, kinds) for each in node["anyOf"]))
    if "enum" in node or "const" in node:
        return ", ".join(_typed(value) for value in node.get("enum", [node.get("const")]))
    kind = node.get("type", "")
    if kind == "object" and "properties" in node:
        return "{" + ", ".join(f"{name}: …" for name in node["properties"]) + "}"
    bounds = [form.format(_bound(node[key])) for key, form in _BOUNDS.items() if key in node]
    if "multipleOf" in node:
        bounds.append(f"a multiple of {node['multipleOf']}")
    return " ".join((_KINDS.get(kind, "anything"), ", ".join(bounds))).strip()


def _bound(value: float) -> str:
    """Write a bound; large powers of two, which keep slips out, as such."""
    whole = int(value)
    if whole == value and whole >= 2**15 and whole.bit_count() == 1:
        return f"2^{whole.bit_length() - 1}"
    return f"{value:.12g}"


def _typed(value: object) -> str:
    """Write a value as YAML takes it, on one line."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and (not value or 1e-4 <= abs(value) < 1e6):
        return f"{value:.10g}"
    return json.dumps(value, ensure_ascii=False)
