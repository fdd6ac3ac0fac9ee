"""Navi home directory: `$NAVI_HOME`, by default `.navi` in the working directory, with its compiled-scene cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from navi_core.config import CompileConfig, parse_config
from navi_core.machine import variable

if TYPE_CHECKING:
    from navi_core.scenes import Scene, SceneSource


def navi_home() -> Path:
    """Return the home directory of scenes, runs, models, outbox and warehouse; it need not exist yet.

    Returns:
        `$NAVI_HOME` (or that of `using_variables`) if it is set and not empty, else `./.navi`, as an absolute path.
    """
    return Path(os.path.expanduser(variable("NAVI_HOME") or ".navi")).absolute()


def outbox_path() -> Path:
    """Return the outbox folder, where metric segments wait for ingest into the warehouse."""
    return navi_home() / "outbox"


def recordings_folder() -> Path:
    """Return the folder of people's recordings, `$NAVI_DEMOS` or `recordings/` of the Navi home; it need not exist."""
    named = os.environ.get("NAVI_DEMOS")
    return Path(named).expanduser().absolute() if named else navi_home() / "recordings"


def load_scenes(names: Sequence[str], resolution: int) -> list[Scene]:
    """Load scenes by name, compiled on demand and cached in the Navi home.

    Args:
        names: `.gmdag` or mesh files, folders of meshes, generated scenes as family:seeds, or a split of the
            benchmark as rooms-v1:test.
        resolution: Compile resolution of meshes and generated scenes.

    Raises:
        SceneError: A file is missing or broken, or a folder holds no mesh.
        ConfigError: An unknown family, or seeds that cannot be read.
    """
    return [load() for _, load in scene_loaders(names, resolution)]


def scene_loaders(names: Sequence[str], resolution: int) -> list[tuple[str, Callable[[], Scene]]]:
    """Return (name, lazy loader) of each scene; arguments and errors as `load_scenes`."""
    from navi_core.scenes import scenes_named

    config = parse_config(CompileConfig, {"resolution": resolution})
    folder = navi_home() / "scenes"
    return [(source.name, partial(_compiled, source, folder, config)) for source in scenes_named(names)]


def _compiled(source: SceneSource, folder: Path, config: CompileConfig) -> Scene:
    from navi_core.scenes import compile_source, require_frozen

    scene = compile_source(source, folder, config).scene
    if source.family is not None:
        require_frozen(scene)
    return scene
