"""Training of policies on the corpus, and the JSON documents that name their checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.config import TrainConfig, config_hash
from navi_core.errors import ConfigError, RecordError, RunError
from navi_core.presets import resolve_config
from navi_pipeline.lib.corpus.demonstrations import read_demonstrations
from navi_pipeline.lib.corpus.scenes import scene_paths
from navi_pipeline.lib.records import pipeline_folder, read_document, write_document
from navi_pipeline.lib.training.run_curve import Monitor
from navi_pipeline.lib.training.trainer_client import (
    APEX,
    algorithm_of,
    identified,
    require_whole,
    run_name,
    train_in_child,
    training_command,
)
from navi_pipeline.lib.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    import pandas

ALGORITHMS: tuple[str, ...] = ("ppo", "grpo", "dqn", "dpo", APEX)
"""Names of the reinforcement learners, and Ape-X; the first one's policies challenge the champion."""

_RESULT = ("checkpoint", "run_id", "version", "steps", "reward_ema", "wall_time_hours")
_STEPS = {"quick": {"ppo": 294_912, "grpo": 65_536, "dqn": 32_768, "dpo": 65_536, APEX: 32_768}}
"""Training length by profile and learner, where the preset has no limit [decisions]."""
_DEFAULT_STEPS = 2_000_000
_EPOCHS = {"quick": 8}
"""Epochs of behaviour cloning by profile, where it differs from the default."""
_CLONED = ("quick", "standard", "rooms", "rooms_standard")
"""Profiles whose PPO is initialised from the behaviour clone; the demo starts from new weights."""

STARTS = ("profile", "clone", "new")
"""Sources of the initial weights: the profile's default, the behaviour clone, or new weights."""


def asset_name(algorithm: str) -> str:
    """Return the asset name of a learner, which is part of its runs' keys."""
    return f"{algorithm}_policy"


def policy_name(policy: dict[str, Any]) -> str:
    """Return the display name of a policy: profile, seed, and learner unless it is PPO."""
    name = f"{policy['profile']}-seed{policy['seed']}"
    return name if policy["algorithm"] == "ppo" else f"{policy['algorithm']}-{name}"


def training_config(
    profile: str, *, seed: int, total_steps: int | None = None, algorithm: str = "ppo", epochs: int | None = None
) -> TrainConfig:
    """Resolve the training configuration of a profile on the corpus' training scenes.

    Args:
        profile: Preset name.
        seed: Seed of the run.
        total_steps: Decisions summed over rows; None takes the preset's, or a bounded default: an asset ends.
        algorithm: One of `ALGORITHMS`, or bc.
        epochs: Passes over the demonstrations; None takes the profile's.

    Raises:
        RecordError: The corpus has not been materialized.
        RunError: The corpus has no training scene.
    """
    scenes = [str(path) for path in scene_paths("train")]
    if not scenes:
        raise RunError("the corpus has no training scene; materialize scene_sources with train above 0")
    flags: dict[str, Any] = {"seed": seed, "corpus": {"scenes": scenes}, "algorithm": algorithm_of(algorithm)}
    if algorithm == "bc":
        passes = epochs or _EPOCHS.get(profile)
        return resolve_config(preset=profile, flags=flags | ({"bc": {"epochs": passes}} if passes else {}))
    if algorithm == "dpo":
        flags["policy"] = {"place_memory": False}  # the compared flights are recorded without their maps
    config = resolve_config(preset=profile, flags=flags)
    steps = total_steps or _STEPS.get(profile, {}).get(algorithm) or config.total_steps or _DEFAULT_STEPS
    return identified(config.model_copy(update={"total_steps": steps}))


def train_policy(
    profile: str,
    *,
    algorithm: str = "ppo",
    seed: int,
    total_steps: int | None = None,
    epochs: int | None = None,
    start: str = "profile",
    on_line: Callable[[str], None],
    watch: Callable[[str, TrainConfig], Monitor] = lambda run_id, _: Monitor(run_id),
) -> dict[str, Any]:
    """Train a policy, or reuse the finished run of the same configuration and data; ingest its rows.

    Args:
        profile: Preset name.
        algorithm: One of `ALGORITHMS`, or bc for cloning the profile's demonstrations.
        seed: Seed of the run.
        total_steps: Decisions summed over rows, or None.
        epochs: Passes over the demonstrations, for bc.
        start: Source of PPO's initial weights, one of `STARTS`.
        on_line: Called with every line of the trainer.
        watch: Called with run id and configuration before a training; returns the monitor that may stop it.

    Returns:
        The policy's document: algorithm, checkpoint, run_id, weights_hash, steps, …, and `reused`.

    Raises:
        ConfigError: There is no such source of weights.
        RecordError: Something upstream has not been materialized.
        RunError: The trainer failed, or was stopped before its end.
    """
    asset = asset_name(algorithm)
    config = training_config(profile, seed=seed, total_steps=total_steps, algorithm=algorithm, epochs=epochs)
    command, given, parent = _command(algorithm, profile, start, seed)
    # What a run learns from is part of its key: other demonstrations, or another clone, are another run.
    partition = profile if given is None else f"{profile}-{given}"
    known = _path(algorithm, profile, f"{config_hash(config)}-{given or 'new'}")
    if known.exists():
        document = read_document(known, made_by=asset)
        if Path(document["checkpoint"]).exists():
            return _keep(document) | {"reused": True}
    monitor = watch(run_name(asset, partition, config), config)
    result = train_in_child(config, asset=asset, partition=partition, command=command, on_line=on_line, stop=monitor)
    monitor.read()
    Warehouse().ingest()
    require_whole(result, "training")
    document = {
        **{name: result.get(name) for name in _RESULT},
        "algorithm": algorithm,
        "profile": profile,
        "seed": seed,
        "config_hash": config_hash(config),
        "train_scenes": len(config.corpus.scenes),
        "weights_hash": _weights_hash(Path(result["checkpoint"])),
        "parent": parent,
        "metrics": {name: value for name, value in result.get("metrics", {}).items() if isinstance(value, float | int)},
    }
    write_document(known, document)
    return _keep(document) | {"reused": False}


def read_policy(profile: str, algorithm: str = "ppo", *, seed: int | None = None) -> dict[str, Any]:
    """Load the JSON document of a profile's trained policy.

    Args:
        profile: Preset name.
        algorithm: One of `ALGORITHMS`, or bc.
        seed: Seed of its training; by default the policy that was trained last.

    Raises:
        RecordError: The policy has not been trained.
    """
    partition = profile if seed is None else f"{profile}|{seed}"
    document = read_document(
        _found(algorithm, profile, seed), made_by=f"{asset_name(algorithm)}, partition {partition},"
    )
    if seed not in (None, document["seed"]):
        raise RecordError(f"no {asset_name(algorithm)} of seed {seed}; materialize its partition {partition}")
    return document


def known_policies(profile: str, seed: int | None = None) -> list[dict[str, Any]]:
    """Load the JSON documents of all trained policies of a profile, the clone last; of that seed where there is one."""
    found = {algorithm: _found(algorithm, profile, seed) for algorithm in (*ALGORITHMS, "bc")}
    return [read_document(path, made_by=asset_name(name)) for name, path in found.items() if path.exists()]


def curve_of(run_id: str) -> pandas.DataFrame:
    """Query the training curve of a run, by step."""
    return Warehouse().query("select * from training_curve where run_id = ? order by step", [run_id])


def cloning_curve_of(run_id: str) -> pandas.DataFrame:
    """Query the losses of a behaviour-cloning run by step: nll, validation_nll, sps."""
    return Warehouse().query(
        "select step, max(value) filter (name = 'nll') as nll, "
        "max(value) filter (name = 'validation_nll') as validation_nll, max(value) filter (name = 'sps') as sps "
        "from metrics where run_id = ? group by step order by step",
        [run_id],
    )


def metric_counts(run_id: str) -> dict[str, Any]:
    """Count a run's metric rows: rows, not_finite (and the first name), doubled (rows that share step and name)."""
    (counts,) = (
        Warehouse()
        .query(
            "select count(*) as rows, count(*) filter (not isfinite(value)) as not_finite, "
            "coalesce(min(name) filter (not isfinite(value)), '') as first_not_finite, "
            "count(*) - count(distinct (step, name)) as doubled from metrics where run_id = ?",
            [run_id],
        )
        .to_dict("records")
    )
    return {str(name): value for name, value in counts.items()}


def _command(algorithm: str, profile: str, start: str, seed: int = 0) -> tuple[list[str], str | None, str | None]:
    """Return the `navi` command, the hash of its demonstrations or clone, and the parent's version."""
    if start not in STARTS:
        raise ConfigError(f"start {start!r}; allowed: {', '.join(STARTS)}")
    if algorithm == "bc":
        data = read_demonstrations(profile)
        return training_command("bc", data["folders"]), str(data["content_hash"])[:12], None
    if algorithm != "ppo" or start == "new" or (start == "profile" and profile not in _CLONED):
        return training_command(algorithm), None, None
    clone = read_document(_found("bc", profile, seed), made_by=f"bc_policy, partition {profile}|{seed},")
    if not Path(clone["checkpoint"]).exists():
        raise RecordError(f"{clone['checkpoint']} is gone; materialize bc_policy, partition {profile}|{seed}, again")
    return [*training_command(algorithm), "--init", clone["version"]], str(clone["weights_hash"])[:12], clone["version"]


def _path(algorithm: str, profile: str, digest: str | None = None) -> Path:
    folder = pipeline_folder() / "policies"
    return folder / (f"{algorithm}-{profile}.json" if digest is None else f"{algorithm}-{profile}-{digest}.json")


def _found(algorithm: str, profile: str, seed: int | None) -> Path:
    """Return the document of a seed's policy; where there is none, of the policy that was trained last."""
    named = _path(algorithm, profile, f"seed{seed}")
    return named if named.exists() else _path(algorithm, profile)


def _keep(document: dict[str, Any]) -> dict[str, Any]:
    """Write a policy's document as that of its seed, and as the profile's latest."""
    for digest in (None, f"seed{document['seed']}"):
        write_document(_path(document["algorithm"], document["profile"], digest), document)
    return document


def _weights_hash(checkpoint: Path) -> str:
    from navi_core.models import load_checkpoint

    return load_checkpoint(checkpoint).weights_hash
