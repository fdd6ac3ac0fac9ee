"""Modules of a user's own that add encoders and temporal cores: found, and imported once in every process.

They are named by the environment variable `NAVI_PLUGINS` or by an installed package's entry points, and by nothing
else: no file, checkpoint or message can make Navi import a module.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from navi_core.errors import ConfigError

__all__ = ["PLUGINS_GROUP", "PLUGINS_VARIABLE", "load_plugins", "loaded_plugins"]

PLUGINS_VARIABLE = "NAVI_PLUGINS"
"""Environment variable: names of modules with commas between them."""
PLUGINS_GROUP = "navi.plugins"
"""Entry point group of installed packages, `name = "package.module"`."""

_LOCK = threading.RLock()
_LOADED: dict[str, str] = {}
"""What was loaded, and the file that it came from."""
_LOADING: list[str] = []


def load_plugins() -> None:
    """Import the modules that add networks of a user's own, those alone that this process has not imported yet.

    A module is looked for as `import` does it, and last of all in the current directory, where the console script
    does not look.

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
    """Return the plugins that were loaded and the files that they came from."""
    return dict(_LOADED)


@functools.cache
def _installed() -> tuple[EntryPoint, ...]:
    return tuple(sorted(entry_points(group=PLUGINS_GROUP), key=lambda entry: entry.name))


def _look_here() -> None:
    """Let modules of the current directory be found, behind all others; Python's own safe path forbids it."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path and not sys.flags.safe_path:
        sys.path.append(here)


def _load(where: str, name: str, load: Callable[[], object]) -> None:
    if name in _LOADED:
        return
    _LOADING.append(name)
    try:
        load()
    except (Exception, SystemExit) as error:  # a module of somebody's own may raise anything
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
    told = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
    return _place(error) + told


def _place(error: BaseException) -> str:
    """Return the last line of the module, or of those beside it, that was reached; empty where none was."""
    ours = (Path(__file__).parents[1], Path(importlib.__file__).parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
    frames = [f for f in frames if not any(folder in Path(f.filename).parents for folder in ours)]
    theirs = [f for f in frames if Path(frames[0].filename).parent in Path(f.filename).parents]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}: " if theirs else ""
