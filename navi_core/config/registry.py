"""Plugin registries of networks, learners, pilots, rewards and callbacks: names and builders, built-in and custom.

A configuration holds names alone; the builder of a part is in the part's own package. Plugins are named by the
environment variable `NAVI_PLUGINS` or by an installed package's entry points. No file, checkpoint or message can make
Navi import a module.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import re
import secrets
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar, overload

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from navi_core.errors import ConfigError, did_you_mean

PLUGINS_VARIABLE = "NAVI_PLUGINS"
"""Environment variable: names of modules with commas between them."""
PLUGINS_GROUP = "navi.plugins"
"""Entry point group of installed packages, `name = "package.module"`."""

_LOCK = threading.RLock()
_LOADED: dict[str, str] = {}
"""What was loaded, and the file that it came from."""
_LOADING: list[str] = []


def load_plugins() -> None:
    """Import the plugin modules that register user-defined parts, once per process.

    Modules are searched as by `import`, and last in the current directory, which the console script's path lacks.

    Raises:
        ConfigError: A module cannot be imported, or registers what is taken.
    """
    with _LOCK:
        if _LOADING:
            return  # a plugin that reads a configuration while it is imported
        for entry in _installed():
            _load(f"{PLUGINS_GROUP} {entry.name} = {entry.value}", entry.value, entry.load)
        for name in filter(None, map(str.strip, os.environ.get(PLUGINS_VARIABLE, "").split(","))):
            if not all(part.isidentifier() for part in name.split(".")):
                raise ConfigError(
                    f"{PLUGINS_VARIABLE} has {name!r}, which is not the name of a module: my_lab.networks means "
                    "my_lab/networks.py; several have commas between them"
                )
            _look_here()
            _load(f"{PLUGINS_VARIABLE}={name}", name, functools.partial(importlib.import_module, name))


def loaded_plugins() -> dict[str, str]:
    """Return the loaded plugins with their source files."""
    return dict(_LOADED)


@functools.cache
def _installed() -> tuple[EntryPoint, ...]:
    return tuple(sorted(entry_points(group=PLUGINS_GROUP), key=lambda entry: entry.name))


def _look_here() -> None:
    """Append the current directory to `sys.path`, unless Python's safe-path mode forbids it."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path and not sys.flags.safe_path:
        sys.path.append(here)


def _load(where: str, name: str, load: Callable[[], object]) -> None:
    if name in _LOADED:
        return
    _LOADING.append(name)
    try:
        load()
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise ConfigError(f"{where} cannot be imported: {_reason(name, error)}") from error
    finally:
        _LOADING.pop()
    module = sys.modules.get(name.partition(":")[0])
    _LOADED[name] = str(getattr(module, "__file__", None) or "?")


def _reason(name: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
        return (
            f"there is no module {error.name}; it is looked for in PYTHONPATH, among installed packages and in "
            f"the current directory, {Path.cwd()}"
        )
    text = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
    return _place(error) + text


def _place(error: BaseException) -> str:
    """Format the source location `file:line: ` of the innermost traceback frame in a plugin's code; else empty."""
    ours = (Path(__file__).parents[1], Path(importlib.__file__).parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
    frames = [f for f in frames if not any(folder in Path(f.filename).parents for folder in ours)]
    theirs = [f for f in frames if Path(frames[0].filename).parent in Path(f.filename).parents]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}: " if theirs else ""


class PartNames:
    """Allowed names of one kind of part (encoder, core, learner, pilot); as annotation of `str`, a validator.

    Args:
        kind: In words.
        built_in: Names that Navi brings.
    """

    def __init__(self, kind: str, built_in: tuple[str, ...]) -> None:
        self.kind, self.built_in = kind, built_in
        self._custom: list[str] = []

    def add(self, name: str) -> None:
        """Add a user-defined name to the allowed ones."""
        if name not in self.built_in and name not in self._custom:
            self._custom.append(name)

    def all(self) -> tuple[str, ...]:
        """Return all allowed names in this process, built-in and user-defined."""
        return (*self.built_in, *self._custom)

    def checked(self, name: str) -> str:
        """Validate a part's name and return it unchanged; plugins are loaded if needed.

        Raises:
            ConfigError: Nothing of that name is built in or registered.
        """
        if name not in self.all():
            load_plugins()
        if name in self.all():
            return name
        shown = repr(name if len(name) <= 60 else name[:57] + "...")
        loaded = ", ".join(f"{plugin} ({file})" for plugin, file in loaded_plugins().items())
        hint = did_you_mean(name, self.all())
        raise ConfigError(
            f"no {self.kind} {shown}; {hint}allowed: {', '.join(self.all())}; a user-defined one is allowed where "
            f"{PLUGINS_VARIABLE} names the module that registers it, {PLUGINS_VARIABLE}=my_lab.networks"
            + (f"; loaded: {loaded}" if loaded else "")
        )

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_after_validator_function(self._in_context, handler(source))

    def _in_context(self, name: str, info: ValidationInfo) -> str:
        """Validate a name as pydantic validator; any name passes where the context marks its kind as retired."""
        return name if info.context and self.kind in info.context.get("past", ()) else self.checked(name)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(schema) | {"enum": list(self.all())}


ENCODER_NAMES = PartNames("encoder", ("rayvit", "spherical_cnn", "ring_cnn"))
CORE_NAMES = PartNames("temporal core", ("mamba2", "gru", "mingru", "mambapy", "none"))
LEARNER_NAMES = PartNames("learner", ("ppo", "grpo", "dpo", "bc", "dqn"))
PILOT_NAMES = PartNames(
    "pilot",
    (
        "random",
        "random-held",
        "forward-plus",
        "wall-following",
        "farthest-ray",
        "compass",
        "frontier",
        "planner",
        "oracle",
    ),
)

EncoderName = Annotated[str, ENCODER_NAMES]
CoreName = Annotated[str, CORE_NAMES]
LearnerName = Annotated[str, LEARNER_NAMES]


F = TypeVar("F", bound=Callable[..., Any])
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_ENTERED = """
    A module that registers is loaded in every process where the environment variable NAVI_PLUGINS names it.

    Args:
        name: Small letters, digits and underscores.
        factory: The {kind}, or what builds it; without it a decorator is returned.

    Raises:
        ConfigError: The name is taken, or is no name.
    """


class Registration(Protocol):
    """Protocol of a register function: called with name and factory, or used as a decorator of the factory."""

    @overload
    def __call__(self, name: str) -> Callable[[F], F]: ...

    @overload
    def __call__(self, name: str, factory: F) -> F: ...


class Parts(Mapping[str, F]):
    """Registry of one kind of part: a mapping from names to builders (factories) or functions.

    Args:
        names: The names that settings may have; those that are registered are added to them.
        contract: What a registered part has to do; the documentation of `register` begins with it.

    Attributes:
        register: Registers a part under a name; re-running the same definition replaces it.
    """

    register: Registration

    def __init__(self, names: PartNames, contract: str = "") -> None:
        self.names = names
        self._builders: dict[str, F] = {}
        self._sources: dict[str, str] = {}

        def register(name: str, factory: Any = None) -> Any:  # noqa: ANN401 (typed by `Registration`)
            if factory is None:
                return lambda made: register(name, made)
            self._enter(name, factory)
            return factory

        register.__doc__ = f"{contract.rstrip()}\n{_ENTERED.format(kind=names.kind)}"
        self.register = register

    def _enter(self, name: str, build: F) -> None:
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
        """Return the source hash (12 hex digits) of a user-defined part: its file, or all files of its package.

        Without a file, as in a notebook, the hash is random and valid in this process only. None for a built-in part.

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


def _bare(build: object) -> object:
    return _bare(build.func) if isinstance(build, partial) else build


def _identity(build: object) -> str:
    return str(getattr(_bare(build), "__qualname__", type(build).__qualname__))


def _module(build: object) -> str:
    bare = _bare(build)
    return str(getattr(bare, "__module__", type(bare).__module__))


def _file(build: object) -> str | None:
    return getattr(sys.modules.get(_module(build)), "__file__", None)


def _same(a: object, b: object) -> bool:
    """Return whether two builders are the same definition, such as a re-run notebook cell or a script as plugin."""
    place = _module(a) == _module(b) or (_file(a) is not None and _file(a) == _file(b))
    return place and _identity(a) == _identity(b)


def _digest(build: object) -> str:
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
