"""Which scenes are used: discovery by precedence, compilation of many, and splitting by scene."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from navi_core.config import CompileConfig, CorpusConfig
from navi_core.errors import ConfigError, SceneError
from navi_core.scenes.compiler import CompiledScene, compile_to_file
from navi_core.scenes.gmdag import load_gmdag
from navi_core.scenes.manifest import Manifest, ManifestRow, file_hash, read_manifest
from navi_core.scenes.procedural import FAMILIES, generate_scene
from navi_core.scenes.reader import MESH_SUFFIXES
from navi_core.scenes.scene import Scene
from navi_core.scenes.semantics import merge_vocabularies

__all__ = [
    "SCENES_VARIABLE",
    "SceneSource",
    "compile_corpus",
    "compile_source",
    "discover",
    "discover_root",
    "environment_root",
    "generated_sources",
    "split_by_scene",
]

SCENES_VARIABLE = "NAVI_SCENES"
"""Environment variable that names the root folder of the user's own meshes."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SceneSource:
    """Where one scene comes from: a mesh file, a compiled file, or a generated family and seed."""

    name: str
    """Name, unique within a corpus; fit for a file name and a partition key."""
    dataset: str
    """Group it belongs to: the family's or the folder's name."""
    path: Path | None = None
    """A mesh or `.gmdag` file; None for generated scenes."""
    family: str | None = None
    """Family of a generated scene."""
    seed: int | None = None
    """Seed of a generated scene."""

    @property
    def compiled(self) -> bool:
        """True for a `.gmdag` file, which needs no compilation."""
        return self.path is not None and self.path.suffix.lower() == ".gmdag"

    @property
    def origin(self) -> str:
        """The file's path, or `family:seed`."""
        return str(self.path) if self.path is not None else f"{self.family}:{self.seed}"


def environment_root() -> Path | None:
    """Return the folder `$NAVI_SCENES` names, None where it is unset or empty."""
    value = os.environ.get(SCENES_VARIABLE, "")
    return Path(os.path.expanduser(value)) if value else None


def discover(corpus: CorpusConfig | None = None) -> list[SceneSource]:
    """Return the sources of a corpus, sorted by name.

    Precedence: explicit scenes (a `.gmdag` before a mesh of the same name) > manifest > every mesh under
    root > every mesh under `$NAVI_SCENES` > generated families. Scenes whose manifest verdict is FAIL
    are left out.

    Args:
        corpus: What to use; defaults where left out.

    Raises:
        SceneError: A named file or folder is missing, or nothing is found.
        ConfigError: A family is unknown.
    """
    corpus = corpus or CorpusConfig()
    if corpus.scenes:
        return _explicit(Path(os.path.expanduser(name)) for name in corpus.scenes)
    if corpus.manifest is not None:
        return _from_manifest(Path(os.path.expanduser(corpus.manifest)))
    root = Path(os.path.expanduser(corpus.root)) if corpus.root is not None else environment_root()
    if root is not None:
        return discover_root(root)
    return generated_sources(corpus.families)


def discover_root(root: Path) -> list[SceneSource]:
    """Return every mesh under a folder; hidden folders are left out.

    Raises:
        SceneError: The folder does not exist or holds no mesh.
    """
    if not root.is_dir():
        raise SceneError(f"{root}: no such folder; set {SCENES_VARIABLE} or root to a folder of meshes")
    files = [
        file
        for file in sorted(root.rglob("*"))
        if file.suffix.lower() in MESH_SUFFIXES
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(root).parts)
    ]
    if not files:
        compiled = sorted(root.rglob("*.gmdag"))
        hint = f"; it holds {len(compiled)} .gmdag files: name them as scenes" if compiled else ""
        raise SceneError(f"{root}: no mesh found; searched for {', '.join(MESH_SUFFIXES)}{hint}")
    return _named([(file, file.relative_to(root)) for file in files], root.resolve().name)


def generated_sources(families: dict[str, tuple[int, ...]]) -> list[SceneSource]:
    """Return the sources of generated scenes.

    Raises:
        ConfigError: A family is unknown.
        SceneError: There are no seeds at all.
    """
    unknown = sorted(set(families) - set(FAMILIES))
    if unknown:
        raise ConfigError(f"no scene family {unknown[0]!r}; allowed: {', '.join(sorted(FAMILIES))}")
    sources = [
        SceneSource(f"{family}_{seed:04d}", family, family=family, seed=seed)
        for family in sorted(families)
        for seed in sorted(set(families[family]))
    ]
    if not sources:
        raise SceneError("the corpus is empty: no scenes, no manifest, no root, and no seed of any family")
    return sources


def compile_source(
    source: SceneSource,
    out_dir: Path | str,
    config: CompileConfig | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> CompiledScene:
    """Compile one source, reuse its file, or load it where it is compiled already.

    Args:
        source: A source of `discover`.
        out_dir: Folder of the compiled files.
        config: How to compile.
        progress: Told the stage and the share done.

    Raises:
        SceneError: The source cannot be used.
    """
    if source.compiled and source.path is not None:
        return CompiledScene(source.path, load_gmdag(source.path), True, 0.0)
    if source.path is not None:
        return compile_to_file(source.path, out_dir, config, progress, name=source.name)
    if source.family is None or source.seed is None:
        raise SceneError(f"{source.name}: neither a file nor a family and seed")
    return compile_to_file(generate_scene(source.family, source.seed), out_dir, config, progress)


def compile_corpus(
    sources: Sequence[SceneSource],
    out_dir: Path | str,
    config: CompileConfig | None = None,
    progress: Callable[[str, float], None] | None = None,
    judge: Callable[[Scene], str] | None = None,
    done: Callable[[SceneSource, CompiledScene], None] | None = None,
) -> Manifest:
    """Compile every source and write the manifest and the corpus-wide vocabulary into `out_dir`.

    Scenes that an earlier manifest of the folder lists, and that still lie there, stay listed.

    One scene after the other: a compilation takes tens of milliseconds and the machine is shared with
    training.

    Args:
        sources: What to compile.
        out_dir: Folder of the results; `manifest.json` and `vocabulary.json` lie beside the scenes.
        config: How to compile.
        progress: Told the current scene's name and the share of scenes done.
        judge: Gives the spawn verdict of a scene; rows keep the stored one, or None, without.
        done: Called after each scene.

    Raises:
        SceneError: A source cannot be used; what was compiled before it stays.
    """
    config = config or CompileConfig()
    out = Path(out_dir)
    rows, vocabularies = [], []
    for index, source in enumerate(sources):
        if progress is not None:
            progress(source.name, index / len(sources))
        compiled = compile_source(source, out, config)
        scene = compiled.scene
        rows.append(
            ManifestRow(
                source=source.origin,
                source_hash=scene.source_hash,
                gmdag=compiled.path,
                gmdag_hash=file_hash(compiled.path),
                dataset=source.dataset,
                name=source.name,
                resolution=scene.resolution,
                verdict=judge(scene) if judge is not None else scene.verdict,
            )
        )
        vocabularies.append(scene.semantic_names)
        if done is not None:
            done(source, compiled)
    manifest = Manifest(tuple(rows), merge_vocabularies(vocabularies))
    path = out / "manifest.json"
    if path.is_file():
        manifest = read_manifest(path).updated(manifest)
    manifest.write(path)
    if progress is not None:
        progress("done", 1.0)
    return manifest


def split_by_scene(
    sources: Sequence[SceneSource], test_share: float = 0.25, seed: int = 0
) -> tuple[list[SceneSource], list[SceneSource]]:
    """Split sources into training and test scenes; a scene is never in both.

    The order is that of a digest of (seed, name), so it depends on neither file order nor machine.

    Args:
        sources: At least two.
        test_share: Share of test scenes, at least one and not all.
        seed: Another seed gives another split.

    Raises:
        ConfigError: Fewer than two sources, or a share outside (0, 1).
    """
    if len(sources) < 2 or not 0 < test_share < 1:
        raise ConfigError(f"cannot split {len(sources)} scenes with test_share {test_share}; need 2 and 0 < share < 1")
    ranked = sorted(sources, key=lambda s: hashlib.sha256(f"{seed}:{s.name}".encode()).digest())
    count = min(len(ranked) - 1, max(1, math.floor(len(ranked) * test_share + 0.5)))
    key = lambda s: s.name  # noqa: E731
    return sorted(ranked[count:], key=key), sorted(ranked[:count], key=key)


def _explicit(files: Iterable[Path]) -> list[SceneSource]:
    listed = list(dict.fromkeys(files))
    for file in listed:
        if file.suffix.lower() not in (*MESH_SUFFIXES, ".gmdag"):
            raise SceneError(f"{file}: scenes must be one of: .gmdag, {', '.join(MESH_SUFFIXES)}")
        if not os.path.isfile(file):
            raise SceneError(f"{file}: no such file; see what is there with: navi scenes discover {file.parent}")
    compiled = {file.stem for file in listed if file.suffix.lower() == ".gmdag"}
    kept = [file for file in listed if file.suffix.lower() == ".gmdag" or file.stem not in compiled]
    return _named([(file, Path(file.name)) for file in kept], "explicit")


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


def _named(files: Sequence[tuple[Path, Path]], dataset: str) -> list[SceneSource]:
    """Name files by stem where that is unique, by relative path where it is not."""

    def clean(text: str) -> str:
        return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._") or "scene"

    stems = Counter(clean(relative.stem) for _, relative in files)
    sources, taken = [], Counter[str]()
    for file, relative in files:
        name = clean(relative.stem)
        if stems[name] > 1:
            name = clean(str(relative).replace(os.sep, "_"))
        taken[name] += 1
        if taken[name] > 1:
            name = f"{name}_{taken[name]}"
        group = relative.parts[0] if len(relative.parts) > 1 else dataset
        sources.append(SceneSource(name, group, file))
    return sorted(sources, key=lambda s: s.name)
