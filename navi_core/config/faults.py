"""What is wrong with settings, in words: pydantic's report without its vocabulary."""

from __future__ import annotations

import re
import reprlib
from typing import Any

from pydantic import ValidationError

from navi_core.errors import ConfigError

__all__ = ["told"]

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


def told(error: ValidationError) -> str:
    """Return every fault of a report: the setting's place, its value, what is expected.

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


def _short(value: Any) -> str:
    text = _REPR.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
