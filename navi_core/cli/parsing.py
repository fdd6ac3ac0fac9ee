"""Parsing of command lines: the command class that refuses an option as another option's value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand

from navi_core.errors import ConfigError


class StrictCommand(TyperCommand):
    """Command whose options do not take a value that begins with `--`, which is a forgotten value.

    Attributes:
        optional_values: Values of options that may be given without one, by option.
    """

    optional_values: ClassVar[dict[str, Callable[[], str]]] = {}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 (typer's click is private)
        """Parse arguments.

        Raises:
            ConfigError: An option lacks its value and another option follows.
        """
        return super().parse_args(ctx, list(self._checked(args)))

    def _checked(self, args: list[str]) -> Iterator[str]:
        """Yield arguments, with the default of an optional value that was left out."""
        flags = ("is_flag", "count")
        options = [each for each in self.params if not any(getattr(each, flag, True) for flag in flags)]
        takes_value = {name for each in options for name in each.opts}
        waiting = iter(range(len(args)))
        for at in waiting:
            name = args[at]
            yield name
            if name == "--":
                yield from args[at + 1 :]
                return
            if name not in takes_value:
                continue
            value = args[at + 1] if at + 1 < len(args) else None
            if value is not None and not value.startswith("--"):
                next(waiting)
                yield value
            elif name in self.optional_values:
                yield self.optional_values[name]()
            elif value is not None:
                raise ConfigError(
                    f"{name} has no value: {value} follows, and no value begins with --; next: {name} VALUE {value}, "
                    f"or {name}={value} where that is the value"
                )


def make_strict(app: typer.Typer) -> None:
    """Give every command of an application, those of its groups included, the class `StrictCommand`."""
    for command in app.registered_commands:
        if command.cls in (None, TyperCommand):
            command.cls = StrictCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            make_strict(group.typer_instance)
