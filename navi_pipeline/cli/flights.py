"""The engine's commands `navi evaluate` and `navi models promote` as runs of their assets."""

import copy
import re
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path

import typer

from navi_core.cli.evaluate import evaluate, promote
from navi_pipeline.cli.launch import Target, launch
from navi_pipeline.lib.commands import exit_code

_LONGEST = 200
_TARGETS = {
    evaluate: ("evaluation_job", "evaluated_subject", "subject"),
    promote: ("promotion_job", "challenged_version", "version"),
}
"""Command → job, asset, and the argument that names the partition."""


def register(app: typer.Typer) -> None:
    """Let the engine's commands launch a run; the engine's own objects stay as they are."""
    for group in (app, *(info.typer_instance for info in app.registered_groups)):
        for number, info in enumerate(group.registered_commands if group else ()):
            if group and (command := info.callback) in _TARGETS:
                group.registered_commands[number] = copy.copy(info)
                group.registered_commands[number].callback = _launching(command, *_TARGETS[command])


def _launching(command: Callable[..., None], job: str, asset: str, named: str) -> Callable[..., None]:
    @wraps(command)
    def launching(**options: object) -> None:
        given = {
            name: str(value.absolute()) if isinstance(value, Path) else value
            for name, value in options.items()
            if value is not None
        }
        # Dagster takes neither control characters nor three dots in a partition key.
        key = re.sub(r"[\x00-\x1f]|\.{3,}", "_", str(options[named]))[:_LONGEST]
        target = Target(job, asset, {"options": given}, key)
        if code := launch(target, partial(exit_code, command, **options)):
            raise typer.Exit(code)

    return launching
