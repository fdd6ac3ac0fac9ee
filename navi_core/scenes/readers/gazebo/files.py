"""URI resolution of Gazebo worlds: `model://`, `package://`, `file://`, Fuel URIs and plain paths.

Nothing is ever downloaded. Search order: beside the referring file, in the folders above that file and above the world
(each with its `models` and `fuel_models`), in the folders of Gazebo's environment variables, in Gazebo's own model
folders. Only files below one of these folders are read. Symbolic links must not lead out of them, except in Gazebo's
own folders, where links are the user's.
"""

import os
import re
import urllib.parse
from pathlib import Path

VARIABLES = (
    "GZ_SIM_RESOURCE_PATH",
    "IGN_GAZEBO_RESOURCE_PATH",
    "GAZEBO_MODEL_PATH",
    "GAZEBO_RESOURCE_PATH",
    "SDF_PATH",
)
"""Environment variables of folders, as Gazebo reads them."""
_INSIDE = ("", "models", "fuel_models")
_ABOVE = 4
"""Folders above a file that may be the package's."""
_LONGEST = 4096
"""Characters of a URI that are looked at; no file system takes longer paths."""
_FUEL = re.compile(r"^https?://[^/]+/.*?models/(?P<name>[^/]+)(?:/(?:tip|\d+))?(?:/files)?(?:/(?P<rest>.*))?$", re.I)


class ModelFinder:
    """Resolver of the model and mesh URIs of one Gazebo world."""

    def __init__(self, world: Path) -> None:
        self._world = _above(world)
        self._shared = _shared_folders()
        self._names: dict[Path, dict[str, str]] = {}
        self._found: dict[tuple[str, Path], Path | None] = {}
        self.respelled: dict[str, str] = {}
        """What was found by another spelling alone: as it was named → as it is."""

    def find(self, uri: str, asking: Path) -> Path | None:
        """Resolve a URI to a local file or folder, None if there is none.

        Args:
            uri: As it stands in the file.
            asking: The file that names it.
        """
        key = uri, asking.parent
        if key not in self._found:
            self._found[key] = self._search(uri, asking)
        return self._found[key]

    def _search(self, uri: str, asking: Path) -> Path | None:
        relative, own = path_below(uri), _above(asking)
        if not relative:
            return None
        roots = dict.fromkeys(
            [*(folder / inner for folder in (*own, *self._world) for inner in _INSIDE), *self._shared]
        )
        # A model whose folder was renamed still finds its own meshes.
        tries = [(root, relative) for root in roots]
        if "://" in uri and "/" in relative:
            tries.append((own[0], relative.partition("/")[2]))
        allowed = tuple(f"{os.path.normpath(root)}{os.sep}" for root in roots)
        tries = [(root, rel) for root, rel in tries if os.path.normpath(root / rel).startswith(allowed)]
        for root, rel in tries:
            found = Path(os.path.normpath(root / rel))
            if os.path.exists(found) and self.is_confined(found := _latest(found), asking):
                return found
        for root, rel in tries:
            spelled = self._respelled(root, rel)
            if spelled is not None and self.is_confined(spelled := _latest(spelled), asking):
                self.respelled[Path(rel).name] = spelled.name
                return spelled
        return None

    def is_confined(self, file: Path, asking: Path) -> bool:
        """Check that a file lies, links resolved, below an allowed search folder (path-traversal guard).

        Args:
            file: Below a folder of `find`.
            asking: The file that names it.
        """
        real = Path(os.path.realpath(file))
        folders = (Path(os.path.realpath(folder)) for folder in (*_above(asking), *self._world))
        # All files lie below the root of the file system.
        below = any(real.is_relative_to(folder) for folder in folders if folder != folder.parent)
        return below or any(file.is_relative_to(folder) for folder in self._shared)

    def _respelled(self, root: Path, relative: str) -> Path | None:
        """Find an existing path by case-insensitive match, for names from case-insensitive systems."""
        found = root
        for segment in Path(os.path.normpath(relative)).parts:
            if found not in self._names:
                try:
                    self._names[found] = {name.lower(): name for name in sorted(os.listdir(found), reverse=True)}
                except OSError:
                    self._names[found] = {}
            name = ".." if segment == ".." else self._names[found].get(segment.lower())
            if name is None:
                return None
            found = found / name
        return Path(os.path.normpath(found))


def path_below(uri: str) -> str:
    """Return the relative path of a URI below a search folder, without trailing slash; empty if it cannot be local."""
    fuel = _FUEL.match(uri := uri[:_LONGEST])
    if fuel is not None:
        return urllib.parse.unquote("/".join(part for part in (fuel["name"], fuel["rest"]) if part)).rstrip("/")
    scheme, colons, rest = uri.partition("://")
    path = (urllib.parse.unquote(rest) if colons else scheme).replace("\\", "/").rstrip("/")
    if scheme.lower() in ("http", "https") or "\0" in path:
        return ""
    if path.startswith("/") or re.match(r"^[A-Za-z]:/", path):
        # The author's own machine: what follows its folder of models may be here too.
        return path.rpartition("/models/")[2] if "/models/" in path else ""
    return path


def _above(file: Path) -> list[Path]:
    # A world that is a link belongs to both places.
    places = [Path(os.path.abspath(file)), Path(os.path.realpath(file))]
    return list(dict.fromkeys(folder for place in places for folder in list(place.parents)[:_ABOVE]))


def _shared_folders() -> list[Path]:
    named = [entry for variable in VARIABLES for entry in os.environ.get(variable, "").split(os.pathsep) if entry]
    home = Path(os.path.expanduser("~"))
    folders = [Path(os.path.abspath(os.path.expanduser(entry))) / inner for entry in named for inner in _INSIDE]
    folders += [home / ".gazebo" / "models", home / ".ignition" / "models"]
    for cache in (home / ".gz" / "fuel", home / ".ignition" / "fuel"):
        folders += sorted(cache.glob("*/*/models"))
    return folders


def _latest(found: Path) -> Path:
    """Return the newest version folder of a model in the Fuel cache; other paths unchanged."""
    if not found.is_dir() or any((found / name).is_file() for name in ("model.config", "model.sdf")):
        return found
    numbered = sorted((inner for inner in found.iterdir() if inner.name.isdecimal()), key=lambda f: int(f.name))
    return numbered[-1] if numbered else found
