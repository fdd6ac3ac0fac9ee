"""Base of every configuration: strict keys, readable errors, a hash."""

import difflib
import hashlib
import json
import re
import reprlib
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from navi_core.config.registry import load_plugins
from navi_core.errors import ConfigError

_SECTION = "a section of settings, {name: value}"
_KINDS = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("tuple_type", "list_type", "set_type", "frozen_set_type"), "a list, [a, b]"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), _SECTION),
    "finite_number": "a finite number",
    "string_type": "text",
    "none_required": "null",
    "missing": "a value here, there is none",
}
_BOUNDS = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "literal_error": "{expected}",
    "enum": "{expected}",
}
_ALTERNATIVE = re.compile(r"(constrained-|literal\[|tuple\[|list\[|dict\[|function-)|(int|float|bool|str|none)$")
"""How the last part of a place names one of the kinds that a setting may have."""

_REPR = reprlib.Repr()
"""Bounded in depth and width: nested lists that share their items unfold to any size."""
_REPR.maxlevel = 4
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = _REPR.maxfrozenset = 20
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 120


def format_error(error: ValidationError) -> str:
    """Return every fault of a report: setting, value, expected value.

    Of a setting that may be of several kinds all are named, once.
    """
    faults: dict[str, tuple[Any, list[str]]] = {}
    parts: list[str] = []
    for fault in error.errors():
        place = [str(part) for part in fault["loc"]]
        if place and _ALTERNATIVE.match(place[-1]):
            place.pop()
        where, context = ".".join(place), fault.get("ctx", {})
        if isinstance(ours := context.get("error"), ConfigError):
            parts.append(f"{where}: {ours}" if where else str(ours))
            continue
        kind = fault["type"]
        expected = _KINDS.get(kind) or (_BOUNDS[kind].format(**context) if kind in _BOUNDS else None)
        if expected is None:
            parts.append(f"{where or 'the configuration'} = {_short(fault.get('input'))}: {fault['msg']}")
            continue
        allowed = faults.setdefault(where, (fault.get("input"), []))[1]
        allowed += [expected] * (expected not in allowed)
    parts += [
        f"{where or 'the configuration'} = {_short(value)}: expected {' or '.join(allowed)}"
        for where, (value, allowed) in faults.items()
    ]
    return "; ".join(parts)


def _short(value: object) -> str:
    text = _REPR.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


C = TypeVar("C", bound="Config")
Count = Annotated[int, Field(ge=1, le=2**40)]
"""A count; bounded far beyond use, so that a slip of the keyboard is not an hour of allocation."""


class Config(BaseModel):
    """Base of every configuration: frozen, complete, and strict about keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest_key(cls, data: object) -> object:
        if isinstance(data, dict):
            known = list(cls.model_fields)
            for key in data:
                if key not in known:
                    near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.4)
                    hint = f"did you mean {near[0]!r}? " if near else ""
                    raise ConfigError(f"{cls.__name__} has no key {key!r}; {hint}allowed: {', '.join(known)}")
                if isinstance(data[key], bool) and cls.model_fields[key].annotation in (int, float, str):
                    # pydantic would take true for the number 1.
                    kind = "a name" if cls.model_fields[key].annotation is str else "a number"
                    raise ConfigError(f"{key} = {data[key]}: true and false are not {kind}")
        return data


def parse_config(cls: type[C], data: dict[str, Any], *, context: dict[str, Any] | None = None) -> C:
    """Build `cls` from plain data, turning pydantic's report into one `ConfigError`.

    All settings from outside pass through here, so user-defined networks are loaded here (see
    `load_plugins`), before the first configuration of every process.

    Args:
        cls: A configuration class.
        data: Nested plain values.
        context: For the validators, see `PartNames`.

    Raises:
        ConfigError: Names each offending key, its value and the bound it breaks.
    """
    load_plugins()
    try:
        return cls.model_validate(data, context=context)
    except ValidationError as error:
        raise ConfigError(format_error(error)) from None


def config_hash(config: Config) -> str:
    """Return the first 16 hex digits of the SHA-256 of the configuration's canonical JSON."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
