"""Ablation cell: one training and one evaluation by `navi` commands, both resumable.

The cell's outcome document is written last, so a cell without one is not done. A failed command is an outcome of its
cell only. A hindered or stopped command is no outcome: the cell resumes the next time. A lock lets one process work on
a cell, so ablations that share cells may run concurrently.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from navi_core.config import TrainConfig, parse_config
from navi_core.errors import NaviError, RunError
from navi_core.machine.file_lock import wait_for_lock
from navi_core.presets import merge, resolve_config
from navi_core.terminal import print_status
from navi_pipeline.lib.ablations.catalogue import Variant, find_variants
from navi_pipeline.lib.records import BenchmarkLog, content_key, pipeline_folder, read_document, write_document
from navi_pipeline.lib.records import Outcome as Status
from navi_pipeline.lib.sweeps.cells import CellError, run_command
from navi_pipeline.lib.training.supervised import run_supervised, runs_in_use, wait_for_run
from navi_pipeline.lib.training.trainer_client import require_whole
from navi_pipeline.settings import AblationConfig

_VERSION = 1
_ASSET = "ablation"
"""Asset name in the keys of the cells' runs."""


@dataclass(frozen=True)
class CellOutcome:
    """Outcome of one ablation cell (one variant with one seed): status, evaluation file, metrics, CPU time.

    Attributes:
        variant: Name of the variant.
        seed: Training seed.
        status: ok, out_of_memory, crash or timeout.
        detail: Last line of output, if the status is not ok.
        result: File of the evaluation; empty where there is none.
        checkpoint: Evaluated checkpoint.
        cpu_minutes: Processor time by command.
        metrics: Figures by name.
        commands: Commands of the cell, to be repeated by hand.
    """

    variant: str
    seed: int
    status: Status
    detail: str
    result: str
    checkpoint: str
    cpu_minutes: dict[str, float]
    metrics: dict[str, float]
    commands: list[str]


def settings_of(variant: Variant, config: AblationConfig, seed: int) -> dict[str, Any]:
    """Return the settings of a cell that override the preset: shared ones, the ablation's base, the variant's."""
    from navi_core.scenes import parse_seeds

    families = {name: parse_seeds(seeds) for name, _, seeds in (entry.partition(":") for entry in config.train)}
    shared = {"seed": seed, "total_steps": config.steps, "corpus": {"families": families}, "threads": 1}
    return merge(merge(shared, config.base), variant.settings)


def resolved(variant: Variant, config: AblationConfig, seed: int = 0) -> TrainConfig:
    """Resolve the training configuration of a cell; environment variables are ignored, as in its trainer.

    Raises:
        ConfigError: The variant does not go with the preset.
    """
    flags = {"algorithm": variant.algorithm} | settings_of(variant, config, seed)
    return resolve_config(preset=config.preset, environ={}, flags=flags)


def known_outcome(variant: Variant, config: AblationConfig, seed: int) -> CellOutcome | None:
    """Load the recorded outcome of a cell, shared by all ablations; None if it was not measured."""
    file = outcome_path(variant, config, seed)
    if not file.exists():
        return None
    return CellOutcome(**read_document(file, made_by="navi ablate") | {"variant": variant.name})


def run_cell(
    name: str, variant: Variant, config: AblationConfig, seed: int, *, on_line: Callable[[str], None]
) -> CellOutcome:
    """Train and evaluate one cell and record its rows; return the outcome if another process has just measured it.

    CPU time is that of this process's children, so a process must measure one cell at a time.

    Args:
        name: Name of the ablation, part of its rows' names.
        variant: Variant to train.
        config: Settings shared by all cells.
        seed: Training seed.
        on_line: Called with every line of the commands.

    Raises:
        RunError: Another process holds the cell's run, or a command was stopped; the cell has no outcome yet.
    """
    document = outcome_path(variant, config, seed)
    with wait_for_lock(document.with_suffix(".lock")):
        known = known_outcome(variant, config, seed)
        if known is not None:
            return known
        outcome = _measured(variant, config, seed, on_line)
        _record(name, document.stem, outcome, config)
        write_document(document, asdict(outcome))
        return outcome


def _measured(variant: Variant, config: AblationConfig, seed: int, on_line: Callable[[str], None]) -> CellOutcome:
    key = _key(variant, config, seed)
    folder = pipeline_folder() / "ablations" / key
    settings = folder / "settings.json"
    write_document(settings, settings_of(variant, config, seed))
    steps = _Commands(config.timeout, key, on_line)
    result, checkpoint, detail = folder / "evaluation.json", "", ""
    status: Status = "ok"
    metrics: dict[str, float] = {}
    shared = ("--preset", config.preset, "--config", str(settings), "--asset", _ASSET, "--partition", key)
    try:
        initial = "none"
        if variant.cloned:
            train = resolved(variant, config, seed)
            demos = _demonstrations(steps, config, train)
            cloned = steps.train("clone", "bc", "--demos", str(demos), *shared, "--no-register", "--json")
            initial = str(cloned["checkpoint"])
        trained = steps.train("train", "train", variant.algorithm, *shared, "--from", initial, "--no-register",
                              "--publish", "off", "--json")  # fmt: skip
        checkpoint = str(trained["checkpoint"])
        metrics = {"steps": float(trained["steps"]), "reward_ema": float(trained["reward_ema"] or 0.0)}
        scenes = [word for scene in config.scenes for word in ("--scene", scene)]
        flown = steps.run("evaluate", "evaluate", checkpoint, *scenes, "--protocol", config.protocol,
                          "--out", str(result), "--json")["summary"]  # fmt: skip
        for figure in ("c_vis_auc", "c_vis_final", "collisions_per_minute", "collision_free_rate"):
            metrics[figure] = float(flown[figure])
    except CellError as failure:
        status, detail = failure.status, str(failure)
    return CellOutcome(
        variant.name, seed, status, detail, str(result) if status == "ok" else "", checkpoint, steps.cpu_minutes,
        metrics, steps.commands,
    )  # fmt: skip


def _demonstrations(steps: _Commands, config: AblationConfig, train: TrainConfig) -> Path:
    """Record the demonstrations for behaviour cloning, once for all cells of one sensor."""
    bins = (train.env.azimuth_bins, train.env.elevation_bins, train.compile.resolution)
    key = content_key("demonstrations", config.train, config.demo_pilot, config.demo_episodes, bins)
    folder = pipeline_folder() / "ablations" / f"demos-{key}"
    scenes = [word for scene in config.train for word in ("--scene", scene)]
    with wait_for_lock(folder.with_suffix(".lock")):
        steps.run(
            "demonstrations", "demos", "expert", "--out", str(folder), *scenes, "--pilot", config.demo_pilot,
            "--episodes", str(config.demo_episodes), "--noise", "0.5", "--azimuth-bins", str(bins[0]),
            "--elevation-bins", str(bins[1]), "--resolution", str(bins[2]), "--json",
        )  # fmt: skip
    return folder


class _Commands:
    """Runner for the `navi` commands of a cell: sequential, with CPU time recorded per command."""

    def __init__(self, timeout: float, key: str, on_line: Callable[[str], None]) -> None:
        self.cpu_minutes: dict[str, float] = {}
        self.commands: list[str] = []
        self._timeout, self._on_line = timeout, on_line
        self._runs = f"{_ASSET}-{key}-"

    def run(self, stage: str, *arguments: str) -> dict[str, Any]:
        """Run a `navi` command and return the JSON document that it printed."""
        self.commands.append(" ".join(("navi", *arguments)))
        before = _children_seconds()
        try:
            return run_command(arguments, stage, dict, timeout=self._timeout, on_line=self._on_line)
        except CellError as error:
            raise CellError(error.status, f"{stage}: {error}") from error
        finally:
            self.cpu_minutes[stage] = (_children_seconds() - before) / 60.0

    def train(self, stage: str, *arguments: str) -> dict[str, Any]:
        """Run a training command and return its result; a training that ended early is no outcome.

        Waits for a trainer that an earlier process left running.
        """
        held = RunError(
            f"another process trains {self._runs}*; wait for it or end it, then give the same command again"
        )
        if not wait_for_run(self._runs):
            raise held
        try:
            result = self.run(stage, *arguments)
        except CellError as error:
            if error.status == "crash" and runs_in_use(prefix=self._runs):
                raise held from error
            raise
        require_whole(result, stage)
        return result


def _children_seconds() -> float:
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])  # in user mode and in the kernel


def _record(name: str, key: str, outcome: CellOutcome, config: AblationConfig) -> None:
    units = {"cpu_minutes": "min", "steps": "1", "reward_ema": "1", "collisions_per_minute": "1/min"}
    values = outcome.metrics | {"cpu_minutes": sum(outcome.cpu_minutes.values())}
    # By the cell, so that one that was killed before its document counts once.
    with BenchmarkLog(f"ablation-{name}", run_id=f"ablation-{name}-{key}") as log:
        log.cell(
            outcome.variant,
            {key: (value, units.get(key, "%" if key.startswith("c_vis") else "1")) for key, value in values.items()},
            repeat=outcome.seed,
            seed=outcome.seed,
            step=int(outcome.metrics.get("steps", 0)),
            parameters={"preset": config.preset, "steps": config.steps, "scenes": list(config.scenes)},
            outcome=outcome.status,
            detail=outcome.detail or None,
        )


def _key(variant: Variant, config: AblationConfig, seed: int) -> str:
    from navi_core.learn.algorithms.registry import custom_code

    train = resolved(variant, config, seed)
    settings, own = train.model_dump(mode="json"), custom_code(train)
    demos = [config.demo_pilot, config.demo_episodes] if variant.cloned else None
    code = [] if own is None else [own]
    return content_key("ablation", variant.algorithm, settings, demos, config.scenes, config.protocol, _VERSION, *code)


def outcome_path(variant: Variant, config: AblationConfig, seed: int) -> Path:
    """Return the path of the JSON document that holds a cell's outcome."""
    return pipeline_folder() / "ablations" / f"{_key(variant, config, seed)}.json"


_GRACE = 60.0
"""Grace period for a cell's process to end [s]; its trainer is given 30 s for a checkpoint."""


def run_cell_in_child(
    name: str, variant: Variant, config: AblationConfig, seed: int, *, stop: Callable[[], bool]
) -> CellOutcome:
    """Run an ablation cell in a supervised child process, which ends with this process or on request.

    Args:
        name: Name of the ablation.
        variant: Variant to train.
        config: Settings shared by all cells.
        seed: Training seed.
        stop: Polled twice a second; True ends the child, whose trainer then writes a checkpoint.

    Raises:
        RunError: The child ended before the cell had an outcome.
    """
    cell = [name, variant.name, str(seed), config.model_dump_json()]
    command = [sys.executable, "-m", "navi_pipeline.lib.ablations.cell", *cell]
    code, _, last = run_supervised(command, on_line=lambda _: None, grace_seconds=_GRACE, stop=stop)
    outcome = known_outcome(variant, config, seed)
    if outcome is None:
        raise RunError(
            f"cell {variant.name}/seed{seed} of ablation {name} ended with exit code {code} before it had an outcome; "
            "the same command goes on with it; its last lines:\n" + "\n".join(last)
        )
    return outcome


def main(name: str, variant: str, seed: str, settings: str) -> int:
    """Entry point of the child process: run one ablation cell; SIGTERM ends its command first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        config = parse_config(AblationConfig, json.loads(settings))
        found = next(one for one in find_variants([variant], config.variants) if one.name == variant)
        run_cell(name, found, config, int(seed), on_line=print_status)
    except NaviError as error:
        print_status(f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
