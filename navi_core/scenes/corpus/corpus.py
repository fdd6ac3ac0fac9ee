"""Scene corpus: discovery of scene sources by precedence, compilation, and train/validation/test splits by scene."""

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from navi_core.config import CompileConfig
from navi_core.errors import ConfigError, NaviError, SceneError, did_you_mean
from navi_core.scenes.compiler import CompiledScene, collected_warnings, compile_to_file
from navi_core.scenes.corpus.layouts import scene_name
from navi_core.scenes.corpus.pool import Job, default_jobs, run_jobs
from navi_core.scenes.decimation import Decimation
from navi_core.scenes.gmdag.file import load_gmdag
from navi_core.scenes.gmdag.scene import Scene
from navi_core.scenes.manifest import Manifest, ManifestRow, file_hash, read_manifest, update_manifest
from navi_core.scenes.memory import CompileEstimate, estimate_compile
from navi_core.scenes.naming import clean_name, distinct_names, merge_vocabularies, path_digest
from navi_core.scenes.procedural import FAMILIES, generate_scene
from navi_core.scenes.readers.mesh_file import read_facts

_GENERATED_TRIANGLES = 3_000
"""About what a large generated scene has."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SceneSource:
    """Source of one scene: a mesh file, a compiled `.gmdag` file, or a generator family with its seed."""

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
        """Source in text form: the file's path, or `family:seed`."""
        return str(self.path) if self.path is not None else f"{self.family}:{self.seed}"


@dataclass(frozen=True)
class CompileReport:
    """Report on the compilation of one scene source of a corpus."""

    row: ManifestRow
    """Its row of the manifest."""
    vocabulary: dict[int, str]
    """Name of each semantic id of the scene."""
    triangles: int
    """Triangles of the compiled scene; 0 for version 1 files."""
    skipped: bool
    """True where the file was already there and unchanged."""
    seconds: float
    """Wall-clock time [s]."""
    notes: tuple[str, ...]
    """Warnings of the reader and the compiler."""
    voxel_size: float
    """Edge of a voxel [m]."""
    sharing: float | None
    """Nodes of the octree for one that is stored: what deduplication gained; None for version 1 files."""
    decimation: Decimation | None
    """What merging triangles changed; None where none were merged."""


def generated_sources(families: dict[str, tuple[int, ...]]) -> list[SceneSource]:
    """Return the scene sources of procedurally generated scenes.

    Raises:
        ConfigError: A family is unknown.
        SceneError: There are no seeds at all.
    """
    unknown = sorted(set(families) - set(FAMILIES))
    if unknown:
        hint = did_you_mean(unknown[0], FAMILIES)
        raise ConfigError(f"no scene family {unknown[0]!r}; {hint}allowed: {', '.join(sorted(FAMILIES))}")
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
    """Compile one scene source, reuse its compiled file, or load it where the source is a `.gmdag` file.

    Args:
        source: A source of `discover`.
        out_dir: Folder of the compiled files.
        config: How to compile.
        progress: Called with the stage and the share done.

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


# Above 60 lines: half of it is the description of eight arguments.
def compile_corpus(  # noqa: C901
    sources: Sequence[SceneSource],
    out_dir: Path | str,
    config: CompileConfig | None = None,
    progress: Callable[[str, float], None] | None = None,
    judge: Callable[[Scene], str] | None = None,
    done: Callable[[CompileReport], None] | None = None,
    *,
    jobs: int | None = 1,
    failed: Callable[[SceneSource, NaviError], None] | None = None,
) -> Manifest:
    """Compile every scene source and write the manifest and the corpus-wide vocabulary into `out_dir`.

    Scenes that an earlier manifest of the folder lists, and that still lie there, stay listed. The result does not
    depend on `jobs`: rows stand in the order of the sources, and a scene's file is the same however it is made.

    Args:
        sources: What to compile.
        out_dir: Folder of the results; `manifest.json` and `vocabulary.json` lie beside the scenes.
        config: How to compile.
        progress: Called with the scenes being compiled with their stages, and the share of all that is done.
        judge: Gives the spawn verdict of a scene; rows keep the stored one, or None, without.
        done: Called after each scene, in the order in which they end.
        jobs: Scenes compiled at once, each in a process of its own; 1 stays in this process, None takes as many as
            cores and memory allow. A script that asks for more than one needs the usual `if __name__ == "__main__"`.
        failed: Called for each source that cannot be used; the others go on. Without it the first fault is raised.

    Raises:
        SceneError: Two sources have one name, the folder's manifest is broken, a source cannot be used and `failed`
            is not given, or nothing could be compiled. What was compiled before it stays.
        ConfigError: `jobs` is less than 1.
    """
    config = config or CompileConfig()
    out = Path(out_dir)
    twice = [name for name, uses in Counter(source.name for source in sources).items() if uses > 1]
    if twice:
        both = (source.origin for source in sources if source.name == twice[0])
        raise SceneError(f"the scene name {twice[0]!r} belongs to {' and '.join(both)}; a manifest has each name once")
    path = out / "manifest.json"
    if path.is_file():
        read_manifest(path)  # a broken manifest is reported before the work
    if jobs is None:
        jobs = default_jobs([estimate_source(source, config) for source in sources])
    if jobs < 1:
        raise ConfigError(f"jobs {jobs} must be at least 1")
    report = progress or (lambda _label, _share: None)
    made: dict[int, tuple[ManifestRow, dict[int, str]]] = {}

    def show(stages: dict[str, str], share: float) -> None:
        report(" · ".join(f"{name}: {stage}" for name, stage in stages.items()), share)

    work = [Job(source, out, config) for source in sources]
    # Closed at once, also by a fault: its processes must not outlive the call.
    with contextlib.closing(run_jobs(work, _compile_job, min(jobs, len(sources)), show)) as results:
        for index, result in results:
            if isinstance(result, NaviError):
                if failed is None:
                    raise result
                failed(sources[index], result)
                continue
            for note in result.notes:
                _log.warning("%s", note)
            verdict = judge(load_gmdag(result.row.gmdag)) if judge is not None else result.row.verdict
            made[index] = replace(result.row, verdict=verdict), result.vocabulary
            if done is not None:
                done(result)
    if not made:
        raise SceneError(f"none of {len(sources)} scenes could be compiled; see what is wrong with: navi doctor DIR")
    rows, vocabularies = zip(*(made[index] for index in sorted(made)), strict=True)
    manifest = update_manifest(path, Manifest(rows, merge_vocabularies(vocabularies)))
    report("done", 1.0)
    return manifest


def estimate_source(source: SceneSource, config: CompileConfig) -> CompileEstimate:
    """Estimate memory, time and disk of compiling a source from its header; an unreadable file counts as small."""
    if source.compiled or source.path is None:
        return estimate_compile(_GENERATED_TRIANGLES, config)
    with contextlib.suppress(SceneError):
        return estimate_compile(read_facts(source.path).triangles, config)
    return estimate_compile(0, config)


def _compile_job(job: Job, progress: Callable[[str, float], None]) -> CompileReport:
    source: SceneSource = job.source
    with collected_warnings() as notes:
        compiled = compile_source(source, job.out, job.config, progress)
    scene = compiled.scene
    return CompileReport(
        row=ManifestRow(
            source=source.origin,
            source_hash=scene.source_hash,
            gmdag=compiled.path,
            gmdag_hash=file_hash(compiled.path),
            dataset=source.dataset,
            name=source.name,
            resolution=scene.resolution,
            verdict=scene.verdict,
        ),
        vocabulary=scene.semantic_names,
        triangles=0 if scene.triangles is None else len(scene.triangles),
        skipped=compiled.skipped,
        seconds=compiled.seconds,
        notes=tuple(notes),
        voxel_size=scene.voxel_size,
        sharing=None if scene.dag is None else scene.dag.unfolded.nodes / scene.dag.stored.nodes,
        decimation=scene.decimation,
    )


def named_sources(files: Sequence[tuple[Path, Path]], dataset: str) -> list[SceneSource]:
    """Build scene sources with unique names: the file name where unique, else the relative path (`distinct_names`).

    Args:
        files: Each file and its path within its folder.
        dataset: Of files that lie in no folder of that.
    """
    names = distinct_names({file: (scene_name(file), relative) for file, relative in files})
    sources = [
        SceneSource(names[file], relative.parts[0] if len(relative.parts) > 1 else dataset, file)
        for file, relative in files
    ]
    return sorted(sources, key=lambda s: s.name)


def tell_apart(sources: Sequence[SceneSource]) -> list[SceneSource]:
    """Resolve name collisions between scene sources by prefixing folder names; duplicates are kept once.

    Names of one folder are unique, those of two are not. Of a mesh and a `.gmdag` of the same name beside it the
    `.gmdag` stays.

    Args:
        sources: Of any number of folders; generated scenes keep their names.
    """
    found: dict[Path | str, SceneSource] = {}
    for source in sources:
        found.setdefault(source.name if source.path is None else Path(os.path.abspath(source.path)), source)
    compiled = {file.with_suffix("") for file, source in found.items() if isinstance(file, Path) and source.compiled}
    once = [
        source
        for file, source in found.items()
        if isinstance(file, str) or source.compiled or file.with_suffix("") not in compiled
    ]
    uses = Counter(source.name for source in once)
    taken = {source.name for source in once if source.path is None or uses[source.name] == 1}
    kept = []
    for source in once:
        if source.path is not None and uses[source.name] > 1:
            file = Path(os.path.abspath(source.path))
            name = f"{clean_name(file.parent.name)}_{source.name}"
            source = replace(source, name=name if name not in taken else f"{name}_{path_digest(file)}")
            taken.add(source.name)
        kept.append(source)
    return kept
