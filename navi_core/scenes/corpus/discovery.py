"""Scene selectors: files, manifests, folders and generated families."""

import contextlib
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path

from navi_core.config import CorpusConfig
from navi_core.errors import ConfigError, SceneError, as_argument
from navi_core.scenes.compiler import without_key
from navi_core.scenes.corpus.benchmark import BENCHMARK, benchmark_sources
from navi_core.scenes.corpus.corpus import SceneSource, generated_sources, named_sources, tell_apart
from navi_core.scenes.corpus.layouts import list_files, scene_name, split_scenes
from navi_core.scenes.manifest import read_manifest
from navi_core.scenes.procedural import FAMILIES
from navi_core.scenes.readers.mesh_file import MESH_SUFFIXES, is_mesh_file

SCENES_VARIABLE = "NAVI_SCENES"
"""Environment variable that names the root folder of the user's own meshes."""
_MOST_SEEDS = 100_000

_log = logging.getLogger(__name__)


def discover(corpus: CorpusConfig | None = None) -> list[SceneSource]:
    """Return the sources of a corpus, sorted by name.

    Precedence: explicit scenes (a `.gmdag` before a mesh of the same name) > manifest > every mesh under
    root > every mesh under `$NAVI_SCENES` > generated families. A folder without meshes is one of compiled
    scenes. Scenes whose manifest verdict is FAIL are left out.

    Args:
        corpus: What to use; defaults where left out.

    Raises:
        SceneError: A named file or folder is missing, or nothing is found.
        ConfigError: A family is unknown.
    """
    corpus = corpus or CorpusConfig()
    if corpus.scenes:
        return sorted(scenes_named(corpus.scenes), key=lambda s: s.name)
    if corpus.manifest is not None:
        return _from_manifest(Path(os.path.expanduser(corpus.manifest)))
    root = Path(os.path.expanduser(corpus.root)) if corpus.root is not None else environment_root()
    if root is not None:
        return discover_root(root)
    return generated_sources(corpus.families)


def scenes_named(names: Iterable[str]) -> list[SceneSource]:
    """Return the sources that names stand for, in their order, each once.

    Args:
        names: `.gmdag` or mesh files, folders of meshes, generated scenes as family:seeds (apartment:0-11), or a split
            of the benchmark (rooms-v1:test).

    Raises:
        SceneError: A file or folder is missing, or is none of these.
        ConfigError: Seeds that cannot be read, or a split that is none.
    """
    found: list[SceneSource] = []
    for name in names:
        family, colon, seeds = name.partition(":")
        if family == BENCHMARK:
            found += benchmark_sources(seeds)
        elif colon and family in FAMILIES:
            found += generated_sources({family: parse_seeds(seeds)})
        else:
            path = Path(os.path.expanduser(name))
            found += discover_root(path) if path.is_dir() else [_file(path)]
    return tell_apart(found)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of "3", "0-11" or "1,4,7".

    Raises:
        ConfigError: The text is none of these.
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        # Ten digits hold every seed below 2³¹.
        numbers = [first, last] if dash else [first]
        if not all(re.fullmatch("[0-9]{1,10}", n) and int(n) < 2**31 for n in numbers) or int(numbers[-1]) < int(first):
            raise ConfigError(
                f"seeds {text!r} cannot be read at {part!r}; write 3, 0-11 or 1,4,7, each below 2147483648"
            )
        end = int(last) if dash else int(first)
        if end - int(first) > _MOST_SEEDS:
            raise ConfigError(f"seeds {text!r}: at most {_MOST_SEEDS:,} scenes at once")
        seeds += range(int(first), end + 1)
    return tuple(dict.fromkeys(seeds))


def environment_root() -> Path | None:
    """Return the folder `$NAVI_SCENES` names, None where it is unset or empty."""
    value = os.environ.get(SCENES_VARIABLE, "")
    return Path(os.path.expanduser(value)) if value else None


def discover_root(root: Path) -> list[SceneSource]:
    """Return every mesh under a folder, or every compiled scene where it holds no mesh.

    Hidden folders and what belongs to another file are left out, and compiled scenes beside meshes: they would be
    there twice. A warning names those that no mesh of the folder was compiled to. Of one name compiled several times
    into a folder of compiled scenes those that the manifest beside them lists count.

    Raises:
        SceneError: The folder does not exist or holds no scene.
    """
    if not root.is_dir():
        raise SceneError(f"{root}: no such folder; set {SCENES_VARIABLE} or root to a folder of meshes")
    files, cut = list_files(root)
    if cut:
        _log.warning("%s: only its first %d files were looked at; name a smaller folder", root, len(files))
    scenes, parts = split_scenes(files)
    compiled = [file for file in files if file.suffix.lower() == ".gmdag"]
    if scenes:
        meshes = {name for file in scenes for name in (file.stem, scene_name(file))}
        lone = [file for file in compiled if not {file.stem, without_key(file)} & meshes]
        if lone:
            few = ", ".join(file.name for file in lone[:3]) + (", …" if len(lone) > 3 else "")
            _log.warning("%s: %d compiled scenes beside its meshes are left out (%s); name them", root, len(lone), few)
    elif not compiled and parts:
        first, why = min(parts.items())
        raise SceneError(
            f"{root}: no scene found; {len(parts)} meshes are parts, first {first}: {why}; name a file to take it"
        )
    elif not compiled:
        raise SceneError(f"{root}: no scene found; searched for {', '.join(MESH_SUFFIXES)}, and for .gmdag")
    scenes = scenes or _without_superseded(compiled)
    return named_sources([(file, file.relative_to(root)) for file in scenes], root.resolve().name)


def _without_superseded(compiled: list[Path]) -> list[Path]:
    """Leave out what was compiled before with other settings, perhaps mistaken ones: a manifest lists the latest."""
    listed: dict[Path, set[str]] = {}
    for folder in {file.parent for file in compiled}:
        # Without a manifest, or with another program's, all count.
        with contextlib.suppress(SceneError):
            listed[folder] = {row.gmdag.name for row in read_manifest(folder / "manifest.json").rows}
    latest = {
        (file.parent, without_key(file)): file.name for file in compiled if file.name in listed.get(file.parent, ())
    }
    kept = []
    for file in compiled:
        name = without_key(file)
        newer = latest.get((file.parent, name)) if name != file.stem else None
        if newer is None or file.name in listed[file.parent]:
            kept.append(file)
        else:
            _log.warning("%s is left out: %s lists %s, compiled since", file, file.with_name("manifest.json"), newer)
    return kept


def _file(file: Path) -> SceneSource:
    if not is_mesh_file(file) and file.suffix.lower() != ".gmdag":
        raise SceneError(
            f"{file}: scenes must be one of: .gmdag, {', '.join(MESH_SUFFIXES)}, a folder of these, or generated as "
            f"family:seeds, of {', '.join(sorted(FAMILIES))}, or a split as {BENCHMARK}:train"
        )
    if not os.path.isfile(file):
        there = f"navi scenes discover {as_argument(file.parent)}"
        raise SceneError(f"{file}: no such file; see what is there with: {there}")
    (source,) = named_sources([(file, Path(file.name))], "explicit")
    return source


def _from_manifest(path: Path) -> list[SceneSource]:
    sources = []
    for row in read_manifest(path).rows:
        if row.verdict == "FAIL":
            _log.warning("%s: %s has the verdict FAIL and is left out", path, row.name)
            continue
        if not row.gmdag.is_file():
            raise SceneError(f"{path}: {row.name}: {row.gmdag} does not exist; compile the corpus again")
        sources.append(SceneSource(row.name, row.dataset, row.gmdag))
    if not sources:
        raise SceneError(f"{path}: no usable scene in the manifest")
    return sorted(sources, key=lambda s: s.name)
