"""Command lines of the source systems, rewritten to Navi's (docs/reference/source-systems.md lists them)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_ABOUT = ("-h", "--help", "--version", "--install-completion", "--show-completion")


def actor_arguments(arguments: Sequence[str]) -> list[str]:
    """Rewrite arguments of `navi-actor`: `train` without a learner trains by PPO."""
    return _with_default(arguments, "train", "ppo")


def brain_arguments(arguments: Sequence[str]) -> list[str]:
    """Rewrite arguments of `brain`: alone it serves, `models` lists them, `promote FILE` registers a checkpoint."""
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in _ABOUT):
        return ["serve", *arguments]
    if arguments[0] == "promote" and any(_is_checkpoint(word) for word in arguments[1:]):
        return ["models", "register", *arguments[1:]]
    return _with_default(arguments, "models", "list")


def _with_default(arguments: Sequence[str], group: str, command: str) -> list[str]:
    """Insert the default command of a group where none is named."""
    bare = arguments[:1] == [group] and (len(arguments) == 1 or arguments[1].startswith("-"))
    if bare and not set(arguments) & set(_ABOUT):
        return [group, command, *arguments[1:]]
    return list(arguments)


def _is_checkpoint(word: str) -> bool:
    return Path(word).suffix == ".pt"
