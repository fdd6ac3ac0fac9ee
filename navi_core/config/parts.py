"""Names of networks, learners and pilots: the built-in ones, and those that a user's own modules add.

A configuration knows names alone; what builds a part is in the room it belongs to (`config/registration.py`).
"""

from __future__ import annotations

import difflib
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from navi_core.config.plugins import PLUGINS_VARIABLE, load_plugins, loaded_plugins
from navi_core.errors import ConfigError

__all__ = [
    "CORE_NAMES",
    "ENCODER_NAMES",
    "LEARNER_NAMES",
    "PILOT_NAMES",
    "CoreName",
    "EncoderName",
    "LearnerName",
    "PartNames",
]


class PartNames:
    """The names that a kind of part may have; as an annotation of `str`, those that a setting may have.

    Args:
        kind: In words.
        built_in: Names that Navi brings.
    """

    def __init__(self, kind: str, built_in: tuple[str, ...]) -> None:
        self.kind, self.built_in = kind, built_in
        self._own: list[str] = []

    def add(self, name: str) -> None:
        """Allow a name of a user's own."""
        if name not in self.built_in and name not in self._own:
            self._own.append(name)

    def all(self) -> tuple[str, ...]:
        """Return the names that are allowed in this process."""
        return (*self.built_in, *self._own)

    def checked(self, name: str) -> str:
        """Return an allowed name as it is.

        Raises:
            ConfigError: Nothing of that name is built in or registered.
        """
        if name not in self.all():
            load_plugins()
        if name in self.all():
            return name
        shown = repr(name if len(name) <= 60 else name[:57] + "...")
        loaded = ", ".join(f"{plugin} ({file})" for plugin, file in loaded_plugins().items())
        near = difflib.get_close_matches(name, self.all(), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"no {self.kind} {shown}; {hint}allowed: {', '.join(self.all())}; one of your own is allowed where "
            f"{PLUGINS_VARIABLE} names the module that registers it, {PLUGINS_VARIABLE}=my_lab.networks"
            + (f"; loaded: {loaded}" if loaded else "")
        )

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_after_validator_function(self._in_context, handler(source))

    def _in_context(self, name: str, info: ValidationInfo) -> str:
        """Return an allowed name; any, where the context says that this kind of part is past use."""
        return name if info.context and self.kind in info.context.get("past", ()) else self.checked(name)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(schema) | {"enum": list(self.all())}


ENCODER_NAMES = PartNames("encoder", ("rayvit", "spherical_cnn", "ring_cnn"))
CORE_NAMES = PartNames("temporal core", ("mamba2", "gru", "mambapy", "none"))
LEARNER_NAMES = PartNames("learner", ("ppo", "grpo", "dpo", "bc", "dqn"))
PILOT_NAMES = PartNames(
    "pilot", ("random", "random-held", "forward-plus", "wall-following", "farthest-ray", "frontier", "planner")
)

EncoderName = Annotated[str, ENCODER_NAMES]
CoreName = Annotated[str, CORE_NAMES]
LearnerName = Annotated[str, LEARNER_NAMES]
