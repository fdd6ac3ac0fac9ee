"""Inputs and outputs of a training: compiled scenes, initial weights, registration, live telemetry for viewers.

Scenes are compiled or reused, without those that cannot be flown. Viewers do not change a run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navi_core.cli.models import open_registry
from navi_core.errors import GmdagError, MeshError, NaviError, SceneError
from navi_core.terminal import progress_bar

if TYPE_CHECKING:
    from navi_core.config import TrainConfig
    from navi_core.learn import EventBus, TrainResult
    from navi_core.models import Registry
    from navi_core.scenes import CompiledScene, CompileReport, Scene, SceneSource


# More than 60 lines: each scene has one of four outcomes, which are distinguished here.
def compiled_scenes(config: TrainConfig, jobs: int | None = None) -> list[CompiledScene]:  # noqa: C901
    """Build the training corpus: discover scenes, compile or reuse each, and leave out those of spawn verdict FAIL.

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
    """Return a scene's spawn verdict (PASS, MARGINAL, FAIL) and its reason: read from its file, else computed."""
    from navi_core.world import Field, scene_verdict

    if scene.verdict is not None:
        return scene.verdict, "from the file"
    judged = scene_verdict(Field([scene], device="cpu"), 0, config.env.spawn)
    return judged.verdict, judged.reason


def _none_left(unread: list[str], rejected: list[str]) -> NaviError:

    reasons = {"cannot be read": unread, "verdict FAIL": rejected}
    why = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in reasons.items() if names)
    return SceneError(f"no scene can be flown in; {why}; see `navi scenes qualify` for the reasons")


def fitting_latest(config: TrainConfig, *, seeded: bool = False) -> str:
    """Return the version behind `latest` if the run's network can load its weights, else "none" with a message.

    Used where no start is named; a named one that does not fit is an error. The version is returned and not the alias:
    another training may move the alias before the weights are read.

    Args:
        config: The run's configuration.
        seeded: Whether a seed was given: seeds are independent trainings, so it is "none" then, too.
    """
    import logging

    from navi_core.models import load_checkpoint
    from navi_core.models.lineage import same_network

    registry = open_registry(None)
    if "latest" not in registry.aliases():
        return "none"
    version, log = registry.resolve("latest"), logging.getLogger("navi.train")
    if seeded:
        log.info("a given seed begins with new weights (--init none); --init latest begins with %s", version.version)
        return "none"
    if same_network(config.policy, load_checkpoint(version.path)):
        return version.version
    log.warning("latest is %s, another network than this run's: it begins with new weights", version.version)
    return "none"


def initial_weights(registry: Registry, init: str | None) -> Path | None:
    """Resolve `--init` (an alias, a version or a file) to the checkpoint to start from; None for new weights."""
    if init is None or init == "none":
        return None
    if init == "latest" and "latest" not in registry.aliases():
        return None
    path = Path(init)
    return path if path.suffix == ".pt" and path.exists() else registry.resolve(init).path


def enter_version(registry: Registry, result: TrainResult, algorithm: str = "ppo") -> tuple[str, bool]:
    """Register a run's last checkpoint in the model registry; return its version, and whether `latest` points to it."""
    import logging

    from navi_core.models import record_registry
    from navi_core.models.imports import parent_versions

    cloned, flown = ("nll", "best_validation_nll", "best_epoch"), ("episode_return", "episode_length", "sps")
    names, rewards = (cloned, {}) if algorithm == "bc" else (flown, {"reward_ema": reward_of(result)})
    metrics = {name: result.metrics[name] for name in names if name in result.metrics}
    version = registry.register(
        result.checkpoint,
        parents=parent_versions(registry, result.initial),
        metrics={**rewards, "steps": float(result.steps), **metrics},
        notes=f"{result.run_id}, ended by {result.reason}",
        tags=(algorithm,),
    )
    record_registry(registry)
    latest = registry.resolve("latest")
    if latest.version != version:
        why = registry.why_latest_stays(result.checkpoint)
        logging.getLogger("navi.train").info(
            "latest stays %s: %s; name this one %s", latest.version, why or "it was registered before", version
        )
    return version, latest.version == version


def reward_of(result: TrainResult) -> float | None:
    """Return the exponential moving average of the reward; None if the run ended before its first update."""
    import math

    return None if math.isnan(result.reward_ema) else result.reward_ema


AUTO, OFF = "auto", "off"
Publish = Annotated[
    str,
    typer.Option(
        help="Endpoint for dashboards: auto (a free port, found by `navi dashboard`), off, or one such as "
        "tcp://127.0.0.1:5557.",
        metavar="WHERE",
    ),
]
Watch = Callable[[Any], Any]


@contextmanager
def watchable(
    name: str, algorithm: str, publish: str, events: EventBus, *, captured: bool = False
) -> Iterator[Watch | None]:
    """Context manager of a training's live telemetry: yields the `watch` callback, and shows the updates of a bus.

    Args:
        name: The run's name.
        algorithm: Its learner.
        publish: `auto`, `off`, or an endpoint.
        events: Event bus of the run.
        captured: Decisions are replayed as one CUDA graph; then the numbers are shown and no drone.

    Raises:
        ServiceError: The endpoint is taken.
    """
    if publish == OFF:
        yield None
        return
    from navi_core.record.events import UpdateMade
    from navi_core.service.viewing.broadcast import ANY_PORT, TrainingBroadcast

    with TrainingBroadcast(name, algorithm, ANY_PORT if publish == AUTO else publish) as broadcast:
        events.subscribe(UpdateMade, broadcast.show_update)
        yield None if captured else broadcast.watch
