"""Scenes of a training: the corpus, compiled or reused, without scenes that cannot be flown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from navi_core.errors import GmdagError, MeshError, NaviError, SceneError
from navi_core.terminal import progress_bar

if TYPE_CHECKING:
    from navi_core.config import TrainConfig
    from navi_core.scenes import CompiledScene, CompileReport, Scene, SceneSource


def training_scenes(config: TrainConfig, jobs: int | None = None) -> list[Scene]:
    """Return the scenes of `compiled_scenes`."""
    return [compiled.scene for compiled in compiled_scenes(config, jobs)]


def compiled_scenes(config: TrainConfig, jobs: int | None = None) -> list[CompiledScene]:
    """Discover the corpus, compile or reuse every scene, and leave out what cannot be flown in.

    Of a folder or a manifest, files that cannot be read are left out too, with a warning.

    Args:
        config: Names the corpus and how to compile it.
        jobs: Scenes compiled at once; None takes as many as cores and memory allow, and one where it is little work.

    Raises:
        SceneError: Nothing is found, a file that was named cannot be read, a scene cannot be written, or none is left.
    """
    import logging

    from navi_core.record import navi_home
    from navi_core.scenes import compile_corpus, compile_source, discover

    log = logging.getLogger("navi.train")
    sources, folder = discover(config.corpus), navi_home() / "scenes"
    meshes = [source for source in sources if not source.compiled]
    outcomes: dict[str, str] = {}

    def note(report: CompileReport) -> None:
        outcomes[report.row.name] = "unchanged" if report.skipped else f"{report.seconds:.1f} s"

    unread: list[str] = []
    named = {os.path.expanduser(name) for name in config.corpus.scenes or ()}

    def fault(source: SceneSource, error: NaviError) -> None:
        if len(sources) == 1 or source.origin in named or not isinstance(error, MeshError | GmdagError):
            raise error
        log.warning("scene %s is left out: %s", source.name, error)
        unread.append(source.name)

    if meshes:
        try:
            with progress_bar("compiling") as progress:
                compile_corpus(meshes, folder, config.compile, progress, done=note, jobs=jobs, failed=fault)
        except SceneError:
            # Where no mesh could be compiled there may be compiled scenes; else an error follows below.
            if len(unread) < len(meshes):
                raise
    scenes, rejected = [], []
    for source in sources:
        if source.name in unread:
            continue
        try:
            compiled = compile_source(source, folder, config.compile)
        except NaviError as error:
            fault(source, error)
            continue
        verdict, reason = _verdict(compiled.scene, config)
        log.info("scene %s: %s, %s", source.name, outcomes.get(source.name, "as it is"), verdict)
        if verdict == "FAIL":
            log.warning("scene %s is left out, verdict FAIL: %s", source.name, reason)
            rejected.append(source.name)
        else:
            scenes.append(compiled)
    if not scenes:
        raise _none_left(unread, rejected)
    return scenes


def _verdict(scene: Scene, config: TrainConfig) -> tuple[str, str]:
    """Return a scene's verdict and its reason; judged here where the file holds none."""
    from navi_core.world import Field, scene_verdict

    if scene.verdict is not None:
        return scene.verdict, "from the file"
    judged = scene_verdict(Field([scene], device="cpu"), 0, config.env.spawn)
    return judged.verdict, judged.reason


def _none_left(unread: list[str], rejected: list[str]) -> NaviError:

    reasons = {"cannot be read": unread, "verdict FAIL": rejected}
    why = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in reasons.items() if names)
    return SceneError(f"no scene can be flown in; {why}; see `navi scenes qualify` for the reasons")
