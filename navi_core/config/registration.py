"""Tables of parts that users may build themselves: names and what builds them, Navi's own and a user's alike."""

from __future__ import annotations

import hashlib
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload

from navi_core.config.parts import PartNames
from navi_core.config.plugins import load_plugins
from navi_core.errors import ConfigError

__all__ = ["Parts", "Registration", "registration"]

F = TypeVar("F", bound=Callable[..., Any])
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_ENTERED = """
    A module that registers is loaded in every process where the environment variable NAVI_PLUGINS names it.

    Args:
        name: Small letters, digits and underscores.
        factory: What builds the {kind}; without it a decorator is returned.

    Raises:
        ConfigError: The name is taken, or is no name.
    """


class Registration(Protocol):
    """Enters what builds a part under a name: called with both, or as a decorator of what builds it."""

    @overload
    def __call__(self, name: str) -> Callable[[F], F]: ...

    @overload
    def __call__(self, name: str, factory: F) -> F: ...


def registration(parts: Parts[Any], contract: str) -> Registration:
    """Return the function that enters what users build into a table.

    Args:
        parts: The table.
        contract: What is to be built; the function's documentation begins with it.
    """

    def register(name: str, factory: Any = None) -> Any:
        if factory is None:
            return lambda made: register(name, made)
        parts.register(name, factory)
        return factory

    register.__doc__ = f"{contract.rstrip()}\n{_ENTERED.format(kind=parts.names.kind)}"
    return register


class Parts(Mapping[str, F]):
    """Builders of one kind of part by name.

    Args:
        names: The names that settings may have; those that are registered are added to them.
    """

    def __init__(self, names: PartNames) -> None:
        self.names = names
        self._builders: dict[str, F] = {}
        self._sources: dict[str, str] = {}

    def register(self, name: str, build: F) -> None:
        """Enter what builds a part; the same definition, read once more, takes the place of the former.

        Raises:
            ConfigError: The name is no name, or taken.
        """
        kind = self.names.kind
        if name not in self.names.built_in and not _NAME.fullmatch(name):
            raise ConfigError(f"{kind} {name!r}: a name is small letters, digits and _, a letter first, at most 64")
        held = self._builders.get(name)
        if held is not None and (name in self.names.built_in or not _same(held, build)):
            whose = "built in" if name in self.names.built_in else f"{_identity(held)} of {_module(held)}"
            raise ConfigError(f"{kind} {name!r} is taken ({whose}); register {_identity(build)} under another name")
        self._builders[name] = build
        if name not in self.names.built_in:
            self._sources[name] = _digest(build)
            self.names.add(name)

    def source(self, name: str) -> str | None:
        """Return 12 hex digits of the sources of a part that is not Navi's: its file, or all files of its package.

        Where there is no file, as for what was typed into a notebook, they are of this process alone. None for a
        built-in part.

        Raises:
            ConfigError: There is no part of that name.
        """
        return self._sources.get(self.names.checked(name))

    def __contains__(self, name: object) -> bool:
        if name not in self._builders:
            load_plugins()
        return name in self._builders

    def __getitem__(self, name: str) -> F:
        return self._builders[self.names.checked(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._builders)

    def __len__(self) -> int:
        return len(self._builders)


def _bare(build: Any) -> Any:
    return _bare(build.func) if isinstance(build, partial) else build


def _identity(build: Any) -> str:
    return str(getattr(_bare(build), "__qualname__", type(build).__qualname__))


def _module(build: Any) -> str:
    bare = _bare(build)
    return str(getattr(bare, "__module__", type(bare).__module__))


def _file(build: Any) -> str | None:
    return getattr(sys.modules.get(_module(build)), "__file__", None)


def _same(a: Any, b: Any) -> bool:
    """Tell whether two are one definition: a notebook's cell run again, a script that is also imported as a plugin."""
    place = _module(a) == _module(b) or (_file(a) is not None and _file(a) == _file(b))
    return place and _identity(a) == _identity(b)


def _digest(build: Any) -> str:
    name, file = _module(build), _file(build)
    if file is None or not Path(file).is_file():
        return secrets.token_hex(6)
    package = getattr(sys.modules.get(name.partition(".")[0]), "__path__", None)
    folders = sorted(Path(folder) for folder in package or ())
    digest = hashlib.sha256()
    for folder in folders or [Path(file).parent]:
        for source in sorted(folder.rglob("*.py")) if folders else [Path(file)]:
            digest.update(source.relative_to(folder).as_posix().encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
