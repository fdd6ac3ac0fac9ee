"""Parsing of command lines: the command class that refuses an option as another option's value."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand

from navi_core.errors import ConfigError, whole_number


class StrictCommand(TyperCommand):
    """Command whose options do not take a value that begins with `--`, which is a forgotten value.

    Attributes:
        optional_values: Values of options that may be given without one, by option.
    """

    optional_values: ClassVar[dict[str, Callable[[], str]]] = {}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 (typer's click is private)
        """Parse arguments, with the default of an optional value that was left out.

        Raises:
            ConfigError: An option lacks its value and another option follows.
        """
        takes_value = {name for each in self.params if not getattr(each, "is_flag", True) for name in each.opts}
        end = args.index("--") if "--" in args else len(args)
        given: list[str] = []
        for name, follows in zip_longest(args[:end], args[1 : end + 1]):
            given.append(self._with_digits(given[-1] if given else "", name))
            if name not in takes_value or (follows is not None and not follows.startswith("--")):
                continue
            if name in self.optional_values:
                given.append(self.optional_values[name]())
            elif follows is not None:
                raise ConfigError(
                    f"{name} has no value: {follows} follows, and no value begins with --; next: {name} VALUE "
                    f"{follows}, or {name}={follows} where that is the value"
                )
        return super().parse_args(ctx, [*given, *args[end:]])

    def _with_digits(self, before: str, word: str) -> str:
        """Return a word of the command line; the value of an option for whole numbers in digits: 1e5, 100k, 2.5M."""
        option, equals, value = word.partition("=") if word.startswith("--") else (before, "", word)
        counts = {name for each in self.params if _is_whole(each) for name in each.opts}
        number = whole_number(value) if option in counts else None
        return word if number is None else f"{option}={number}" if equals else str(number)


def _is_whole(parameter: Any) -> bool:  # noqa: ANN401 (typer's click is private)
    """Return whether an option takes whole numbers; typer keeps the type in other places from version to version."""
    kind = getattr(parameter, "type_descriptor", None)
    return "int" in str(kind.annotation if kind is not None else parameter.type).lower()


def make_strict(app: typer.Typer) -> None:
    """Give every command of an application, those of its groups included, the class `StrictCommand`."""
    for command in app.registered_commands:
        if command.cls in (None, TyperCommand):
            command.cls = StrictCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            make_strict(group.typer_instance)
