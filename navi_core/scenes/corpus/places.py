"""Sets of buildings that people made, by recipe and hash: commands that bring them, and a check of their files."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from navi_core.errors import SceneError, did_you_mean
from navi_core.scenes.readers.gazebo.plan import is_world, plan_world

_FOLDER = Path(__file__).parent
PLACES = ("places-v1",)
"""Names of the sets."""


@dataclass(frozen=True)
class Place:
    """Building of a set."""

    name: str
    kind: str
    """level: of a game; world: of Gazebo, or a mesh of one."""
    split: str
    """test, flown by what was chosen without it; or tuning."""
    licence: str
    file: str
    """Its file below the set's folder."""
    sha256: str
    """See `digest`."""
    get: tuple[str, ...]
    """Commands that bring it into the set's folder, run there."""

    def state(self, root: Path) -> str:
        """Return "present", "missing", or "changed" where the files are not those of the recipe."""
        path = root / self.file
        if not path.is_file():
            return "missing"
        return "present" if digest(path) == self.sha256 else "changed"


def read_places(name: str) -> list[Place]:
    """Read a set of buildings.

    Raises:
        SceneError: There is no such set.
    """
    if name not in PLACES:
        raise SceneError(f"no set of buildings {name!r}; {did_you_mean(name, PLACES)}allowed: {', '.join(PLACES)}")
    document = yaml.safe_load((_FOLDER / f"{name.replace('-', '_')}.yaml").read_text(encoding="utf-8"))
    places = []
    for source in document:
        common = {key: source[key] for key in ("kind", "licence")} | {"get": tuple(source["get"])}
        for split in ("test", "tuning"):
            for file, sha256 in source.get(split, {}).items():
                places.append(Place(Path(file).stem, split=split, file=file, sha256=sha256, **common))
    return places


def digest(path: Path) -> str:
    """Return the SHA-256 of a file; of a world that of the sorted ones of all files that it names."""
    named: Iterable[Path] = {path, *plan_world(path).files} if is_world(path) else {path}
    digests = sorted(hashlib.sha256(file.read_bytes()).digest() for file in named)
    return digests[0].hex() if len(digests) == 1 else hashlib.sha256(b"".join(digests)).hexdigest()
