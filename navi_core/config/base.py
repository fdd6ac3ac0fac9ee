"""The base of every configuration: strict keys, readable errors, a hash."""

from __future__ import annotations

import difflib
import hashlib
import json
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from navi_core.config.faults import told
from navi_core.config.plugins import load_plugins
from navi_core.errors import ConfigError

__all__ = ["Config", "Count", "config_hash", "parse_config"]

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
    def _name_the_nearest_key(cls, data: Any) -> Any:
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

    This is the door for settings from outside, so a user's own networks are loaded here (see `plugins`): before the
    first configuration of every process, whatever started it.

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
        raise ConfigError(told(error)) from None


def config_hash(config: Config) -> str:
    """Return the first 16 hex digits of the SHA-256 of the configuration's canonical JSON."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
