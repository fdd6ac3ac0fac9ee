"""Cells of an ablation: one training and one evaluation each by `navi` commands, both resumable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from navi_core.config import TrainConfig
from navi_core.errors import RunError
from navi_core.machine.file_lock import wait_for_lock
from navi_core.presets import merge, resolve_config
from navi_pipeline.lib.experiments.cells import Cell, CellError, Measurement
from navi_pipeline.lib.experiments.variants import BASE, Variant
from navi_pipeline.lib.records import content_key, pipeline_folder, write_document
from navi_pipeline.lib.training.supervised import runs_in_use, wait_for_run
from navi_pipeline.lib.training.trainer_client import require_whole
from navi_pipeline.settings import AblationConfig

_VERSION = 1
_ASSET = "ablation"
"""Asset name in the keys of the cells' runs."""
_FLOWN = ("c_vis_auc", "c_vis_final", "collisions_per_minute", "collision_free_rate")


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


def differing_variants(variants: Sequence[Variant], config: AblationConfig) -> tuple[list[Variant], dict[str, str]]:
    """Split variants into those that differ from the base on this preset, and skipped ones with the reason."""
    base = resolved(variants[0], config)
    same = {
        variant.name: f"is the {BASE} of {config.preset}"
        for variant in variants[1:]
        if not variant.cloned and resolved(variant, config) == base
    }
    return [variant for variant in variants if variant.name not in same], same


def ablation_cell(name: str, variant: Variant, config: AblationConfig, seed: int) -> Cell:
    """Return the cell of a variant and a seed; its outcome is shared by all ablations.

    Args:
        name: Name of the ablation, part of its rows' names.
        variant: Variant to train.
        config: Settings shared by all cells.
        seed: Training seed.

    Raises:
        ConfigError: The variant does not go with the preset.
    """
    key = _key(variant, config, seed)
    return Cell(
        factors={"variant": variant.name, "seed": seed},
        file=pipeline_folder() / "ablations" / f"{key}.json",
        measure=lambda measurement: _measure(measurement, variant, config, seed, key),
        benchmark=f"ablation-{name}",
        # By the cell, so that one that was killed before its document counts once.
        run_id=f"ablation-{name}-{key}",
        parameters={"preset": config.preset, "steps": config.steps, "scenes": list(config.scenes)},
    )


def _measure(measurement: Measurement, variant: Variant, config: AblationConfig, seed: int, key: str) -> None:
    folder = pipeline_folder() / "ablations" / key
    settings, result = folder / "settings.json", folder / "evaluation.json"
    write_document(settings, settings_of(variant, config, seed))
    shared = ("--preset", config.preset, "--config", str(settings))
    initial = "none"
    if variant.cloned:
        demos = _demonstrations(measurement, config, resolved(variant, config, seed))
        command = ("bc", "--demos", str(demos), *shared, "--no-register", "--json")
        initial = str(train_cell(measurement, "clone", _ASSET, key, *command)["checkpoint"])
    trained = train_cell(measurement, "train", _ASSET, key, "train", variant.algorithm, *shared, "--from", initial,
                     "--no-register", "--publish", "off", "--json")  # fmt: skip
    made = measurement.outcome
    made.checkpoint, made.result = str(trained["checkpoint"]), str(result)
    made.metrics |= {"steps": float(trained["steps"]), "reward_ema": float(trained["reward_ema"] or 0.0)}
    scenes = [word for scene in config.scenes for word in ("--scene", scene)]
    made.metrics |= measurement.run(
        "evaluate", made.checkpoint, *scenes, "--protocol", config.protocol, "--out", str(result), "--json",
        stage="evaluate", read=lambda document: {name: float(document["summary"][name]) for name in _FLOWN},
    )  # fmt: skip


def _demonstrations(measurement: Measurement, config: AblationConfig, train: TrainConfig) -> Path:
    """Record the demonstrations for behaviour cloning, once for all cells of one sensor."""
    bins = (train.env.azimuth_bins, train.env.elevation_bins, train.compile.resolution)
    key = content_key("demonstrations", config.train, config.demo_pilot, config.demo_episodes, bins)
    folder = pipeline_folder() / "ablations" / f"demos-{key}"
    scenes = [word for scene in config.train for word in ("--scene", scene)]
    with wait_for_lock(folder.with_suffix(".lock"), stop=measurement.stop):
        measurement.run(
            "demos", "expert", "--out", str(folder), *scenes, "--pilot", config.demo_pilot, "--episodes",
            str(config.demo_episodes), "--noise", "0.5", "--azimuth-bins", str(bins[0]), "--elevation-bins",
            str(bins[1]), "--resolution", str(bins[2]), "--json", stage="demonstrations", read=dict,
        )  # fmt: skip
    return folder


def train_cell(measurement: Measurement, stage: str, asset: str, key: str, *command: str) -> dict[str, Any]:
    """Run a training command as the run of a cell and return its result; a training that ended early is no outcome.

    Waits for a trainer that an earlier process left running.

    Args:
        measurement: Measurement of the cell.
        stage: Name of the command in messages.
        asset: Asset name of the run's key.
        key: Partition of the run's key.
        command: Arguments of `navi`.

    Raises:
        CellError: It failed, which is an outcome.
        RunError: It was stopped, or another process holds its run.
    """
    runs = f"{asset}-{key}-"
    held = RunError(f"another process trains {runs}*; wait for it or end it, then give the same command again")
    if not wait_for_run(runs, ending=measurement.stop):
        raise held
    try:
        result: dict[str, Any] = measurement.run(*command, "--asset", asset, "--partition", key, stage=stage, read=dict)
    except CellError as error:
        if error.status == "crash" and runs_in_use(prefix=runs):
            raise held from error
        raise
    require_whole(result, stage)
    return result


def _key(variant: Variant, config: AblationConfig, seed: int) -> str:
    from navi_core.learn.algorithms.registry import custom_code

    train = resolved(variant, config, seed)
    settings, own = train.model_dump(mode="json"), custom_code(train)
    demos = [config.demo_pilot, config.demo_episodes] if variant.cloned else None
    code = [] if own is None else [own]
    return content_key("ablation", variant.algorithm, settings, demos, config.scenes, config.protocol, _VERSION, *code)
