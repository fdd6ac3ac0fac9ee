"""`navi train …`: find the scenes, compile or reuse them, train, register the version."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from navi_core.cli.progress import progress_bar
from navi_core.cli.table import print_facts, print_json
from navi_core.cli.training_flags import (
    AsJson,
    Asset,
    Assign,
    ConfigFile,
    EncoderBackend,
    Fresh,
    Init,
    Noisy,
    Partition,
    Preset,
    Register,
    Rows,
    RunRoot,
    SceneFiles,
    Seed,
    Steps,
    Task,
    TemporalCore,
    flagged_config,
    partition_or_preset,
)
from navi_core.cli.watchable import AUTO, OFF, Publish, watchable
from navi_core.errors import NaviError

if TYPE_CHECKING:
    from navi_core.config import TrainConfig
    from navi_core.learn import TrainResult
    from navi_core.learn.parallel import Workers
    from navi_core.models import Registry
    from navi_core.scenes import CompiledScene, CompileReport, Scene, SceneSource

__all__ = [
    "compiled_scenes",
    "enter_version",
    "initial_weights",
    "learner_command",
    "log_on_stderr",
    "parent_versions",
    "register",
    "run_training",
    "show_training",
    "training_record",
    "training_scenes",
    "with_pairs_hash",
]


def register(app: typer.Typer) -> None:
    """Add `train` with its learners to the `navi` command."""
    group = typer.Typer(help="Train a policy; one command per learner.", no_args_is_help=True)
    for algorithm, title in _LEARNERS.items():
        group.command(algorithm)(learner_command(algorithm, title))
    app.add_typer(group, name="train")


_LEARNERS = {
    "ppo": "Train by proximal policy optimisation",
    "grpo": "Train by group-relative policy optimisation, without a critic",
    "dpo": "Train by direct preference optimisation, on pairs of rollouts or of a file (dpo.pairs)",
    "dqn": "Train by double deep Q-learning with prioritised replay",
}


def learner_command(algorithm: str, title: str) -> Callable[..., None]:
    """Return the command of a learner: all of them take the same flags, and one function carries them out.

    Args:
        algorithm: Name of the learner.
        title: What it does.
    """

    def command(
        preset: Preset = None,
        config: ConfigFile = None,
        assign: Assign = None,
        seed: Seed = None,
        steps: Steps = None,
        actors: Rows = None,
        encoder_backend: EncoderBackend = None,
        temporal_core: TemporalCore = None,
        scene: SceneFiles = None,
        task: Task = None,
        noisy: Noisy = False,
        run_root: RunRoot = None,
        asset: Asset = None,
        partition: Partition = None,
        fresh: Fresh = False,
        init: Init = None,
        publish: Publish = AUTO,
        register: Register = True,
        as_json: AsJson = False,
    ) -> None:
        resolved = with_pairs_hash(
            flagged_config(
                algorithm, preset, config, assign, scene,
                {"seed": seed, "total_steps": steps, "actors": actors, "task": task},
                {"encoder": encoder_backend, "core": temporal_core}, noisy,
            )
        )  # fmt: skip
        # Values of actions cannot be begun with another learner's network, which latest mostly is.
        flies = resolved.task is None and resolved.env.task == "explore"
        begin = "latest" if asset is None and flies and algorithm != "dqn" else "none"
        with log_on_stderr():
            if init is None and begin == "latest" and not fresh and not fits_latest(resolved):
                begin = "none"
            record = run_training(
                resolved,
                run_root=run_root,
                asset=asset or "interactive",
                partition=partition_or_preset(partition, preset),
                fresh=fresh,
                init=None if fresh else (init or begin),
                publish=publish,
                register=register,
            )
        if os.environ.get("RANK", "0") == "0":
            show_training(record, as_json)

    command.__doc__ = f"""{title}, resuming where the same command stopped.

    Without arguments: every scene under corpus.root (or the generated families) is compiled or reused,
    and training goes on until it is interrupted. Settings win in this order: defaults, preset, the task's, --config,
    NAVI_* variables, flags, --set. Started by torchrun, several processes share the rows.
    """
    return command


def with_pairs_hash(config: TrainConfig) -> TrainConfig:
    """Return the configuration with the content hash of dpo's file of pairs: other pairs are another run.

    Raises:
        DemoError: The file cannot be read.
    """
    if config.algorithm != "dpo" or config.dpo.pairs is None:
        return config
    from navi_core.demos import read_pairs

    digest = read_pairs(config.dpo.pairs)[1]
    return config.model_copy(update={"dpo": config.dpo.model_copy(update={"pairs_hash": digest})})


def run_training(
    config: TrainConfig,
    *,
    run_root: Path | None = None,
    asset: str,
    partition: str,
    fresh: bool = False,
    init: str | None = None,
    publish: str = OFF,
    register: bool = True,
) -> dict[str, Any]:
    """Train one run from scenes, or a reference task, to a registered version.

    Args:
        config: Full configuration.
        run_root: Folder of runs; by default `runs/` of the Navi home.
        asset: What the run is for.
        partition: Which one of it.
        fresh: Move an earlier run of the same key aside and start anew.
        init: Weights of a new run: `latest` (if there is one), another alias, a version, a checkpoint
            file; None or `none` for new weights.
        publish: Where a dashboard may watch: `auto`, `off`, or an endpoint.
        register: Enter the result into the registry.

    Returns:
        Plain data: run_id, checkpoint, version, steps, updates, episodes, reward_ema, reason,
        resumed_from, initial, latest, scenes, task, config_hash, memory_gib (the largest resident memory of this
        process), metrics. What learned a reference task cannot fly: it is not registered, and its version is None.

    Raises:
        NaviError: As `navi_core.learn.train`, the scene corpus, the run directory and the registry do.
    """
    from navi_core.learn.parallel import joined_workers

    with joined_workers() as workers:
        return _train(config, workers, run_root, asset, partition, fresh, init, publish, register)


def _train(
    config: TrainConfig,
    workers: Workers,
    run_root: Path | None,
    asset: str,
    partition: str,
    fresh: bool,
    init: str | None,
    publish: str,
    register: bool,
) -> dict[str, Any]:
    import logging
    from contextlib import ExitStack

    from navi_core.learn import console_progress, train
    from navi_core.models import Registry
    from navi_core.record import RunDirectory, navi_home
    from navi_core.world import Field
    from navi_core.world.reference import reference_task

    log = logging.getLogger("navi.train")
    first, rows = workers.rows(config.actors)
    registry = Registry(navi_home() / "models")
    root = run_root if run_root is not None else navi_home() / "runs"
    # What can be refused is refused before the run's folder is made.
    initial = initial_weights(registry, init)
    scenes: list[Scene] = []
    if config.task is None:
        # Several trainers on one machine share its cores already.
        scenes = training_scenes(config, jobs=None if workers.size == 1 else 1)
        log.info("%d scenes: %s", len(scenes), ", ".join(scene.name for scene in scenes))
    else:
        options: dict[str, Any] = dict(config.task_options)
        env = reference_task(config.task, rows, config.seed, first_row=first, **options)
    with ExitStack() as stack:
        run = progress = watch = None
        if workers.first:
            run = stack.enter_context(
                RunDirectory.open(root, asset=asset, partition=partition, config=config, fresh=fresh)
            )
            progress = stack.enter_context(console_progress(f"{asset}/{partition}"))
            captured = config.execution == "graph"
            watch, progress = stack.enter_context(
                watchable(run.run_id, config.algorithm, publish, progress, captured=captured)
            )
        world: dict[str, Any]
        if config.task is None:
            world = {"field": Field(scenes, device="cpu", threads=config.threads)}
        else:
            world = {"env": env}
        result = train(config, run, progress=progress, initial=initial, workers=workers, watch=watch, **world)
        version, latest = None, False
        # What was never updated is what it began with.
        if workers.first and register and config.task is None and result.steps > 0:
            version, latest = enter_version(registry, result, config.algorithm)
        version, latest = workers.share((version, latest))
    return training_record(config, result, [scene.name for scene in scenes], version, latest)


def training_record(
    config: TrainConfig, result: TrainResult, scenes: list[str], version: str | None, latest: bool
) -> dict[str, Any]:
    """Return how a run ended, as plain data; what each entry is stands at `run_training`."""
    import resource

    from navi_core.config import config_hash

    return {
        "run_id": result.run_id,
        "checkpoint": str(result.checkpoint),
        "version": version,
        "latest": latest,
        "initial": result.initial,
        "steps": result.steps,
        "updates": result.updates,
        "episodes": result.episodes,
        "reward_ema": _reward(result),
        "wall_time_hours": result.wall_time_hours,
        "memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "reason": result.reason,
        "resumed_from": result.resumed_from,
        "scenes": scenes,
        "task": config.task,
        "config_hash": config_hash(config),
        "metrics": result.metrics,
    }


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

    from navi_core.errors import GmdagError, MeshError, SceneError
    from navi_core.record import navi_home
    from navi_core.scenes import compile_corpus, compile_source, discover
    from navi_core.world import Field, scene_verdict

    log = logging.getLogger("navi.train")
    sources, folder = discover(config.corpus), navi_home() / "scenes"
    meshes = [source for source in sources if not source.compiled]
    told: dict[str, str] = {}

    def note(report: CompileReport) -> None:
        told[report.row.name] = "unchanged" if report.skipped else f"{report.seconds:.1f} s"

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
            # Where no mesh could be compiled there may be compiled scenes; else it is told below.
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
        verdict = compiled.scene.verdict
        if verdict is None:
            verdict = scene_verdict(Field([compiled.scene], device="cpu"), 0, config.env.spawn).verdict
        log.info("scene %s: %s, %s", source.name, told.get(source.name, "as it is"), verdict)
        if verdict == "FAIL":
            log.warning("scene %s has no viable spawn (verdict FAIL) and is left out", source.name)
            rejected.append(source.name)
        else:
            scenes.append(compiled)
    if not scenes:
        reasons = {"cannot be read": unread, "verdict FAIL": rejected}
        why = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in reasons.items() if names)
        raise SceneError(f"no scene can be flown in; {why}; see `navi scenes qualify` for the reasons")
    return scenes


@contextmanager
def log_on_stderr() -> Iterator[None]:
    """Let the engine's log be read on standard error: standard output belongs to the result."""
    import logging

    log = logging.getLogger("navi")
    level, handler = log.level, logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def fits_latest(config: TrainConfig) -> bool:
    """Whether the network of a run can begin with the weights of `latest`, or there is none; says so where not.

    Who names no start gets the latest where it fits; one that is named and does not fit is an error.
    """
    import logging

    from navi_core.models import Registry, load_checkpoint
    from navi_core.policy import build_policy
    from navi_core.record import navi_home

    registry = Registry(navi_home() / "models")
    if "latest" not in registry.aliases():
        return True
    version = registry.resolve("latest")
    theirs = {name: value.shape for name, value in load_checkpoint(version.path).policy_state.items()}
    ours = {name: value.shape for name, value in build_policy(config.policy, 0).state_dict().items()}
    if theirs != ours:
        logging.getLogger("navi.train").warning(
            "latest is %s, another network than this run's: it begins with new weights", version.version
        )
    return theirs == ours


def initial_weights(registry: Registry, init: str | None) -> Path | None:
    """Return the checkpoint that `--init` means: an alias, a version or a file; None for new weights."""
    if init is None or init == "none":
        return None
    if init == "latest" and "latest" not in registry.aliases():
        return None
    path = Path(init)
    return path if path.suffix == ".pt" and path.exists() else registry.resolve(init).path


def enter_version(registry: Registry, result: TrainResult, algorithm: str = "ppo") -> tuple[str, bool]:
    """Register the last checkpoint; return its version and whether `latest` points to it."""
    import logging

    from navi_core.models import record_alias_moves

    numbers = {k: v for k, v in result.metrics.items() if k in ("episode_return", "episode_length", "sps")}
    version = registry.register(
        result.checkpoint,
        parents=parent_versions(registry, result.initial),
        metrics={"reward_ema": _reward(result), "steps": float(result.steps), **numbers},
        notes=f"{result.run_id}, ended by {result.reason}",
        tags=(algorithm,),
    )
    record_alias_moves(registry)
    latest = registry.resolve("latest")
    if latest.version != version:
        best = "unknown" if latest.reward_ema is None else f"{latest.reward_ema:+.4f}"
        logging.getLogger("navi.train").info(
            "latest stays %s: its reward_ema is %s; name this one %s", latest.version, best, version
        )
    return version, latest.version == version


def parent_versions(registry: Registry, initial: str | None) -> list[str]:
    """Return the registered versions that hold the weights a run began with."""
    from navi_core.models import load_checkpoint

    if initial is None:
        return []
    versions = registry.list()
    known = [version.version for version in versions if str(version.path) == initial]
    if known or not Path(initial).is_file():
        return known
    # A checkpoint that was named by its place in a run directory is the version that was made of it.
    weights = load_checkpoint(initial).weights_hash
    return [version.version for version in versions if version.weights_hash == weights][:1]


def _reward(result: TrainResult) -> float | None:
    """Return the smoothed reward, None where the run ended before its first update."""
    import math

    return None if math.isnan(result.reward_ema) else result.reward_ema


def show_training(record: dict[str, Any], as_json: bool) -> None:
    """Print how a run ended, as facts for people or as one JSON object."""
    if as_json:
        print_json(record)
        return
    resumed = f" (resumed from {record['resumed_from']:,})" if record["resumed_from"] is not None else ""
    version = f"{record['version']}{', now latest' if record['latest'] else ''}"
    none = "none: it learned a task and cannot fly" if record["task"] else "none: it was not to be registered"
    none = none if record["steps"] else "none: it ended before its first update"
    facts = {
        "version": version if record["version"] else none,
        "steps": f"{record['steps']:,}{resumed}",
        "ended by": record["reason"],
        "reward_ema": "none yet" if record["reward_ema"] is None else f"{record['reward_ema']:+.4f}",
        "episodes": f"{record['episodes']:,}",
        "world": record["task"] or f"{len(record['scenes'])} scenes",
        "training time": f"{60 * record['wall_time_hours']:.1f} min",
        "checkpoint": record["checkpoint"],
    }
    print_facts(record["run_id"], facts)
