"""Registered versions: initial weights of a training and registration of its result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from navi_core.config import TrainConfig
    from navi_core.learn import TrainResult
    from navi_core.models import Registry


def fitting_latest(config: TrainConfig) -> str:
    """Return the version of `latest` if a run's network can start from it, else none with a warning.

    Who names no start gets the latest where it fits; one that is named and does not fit is an error. It is the version,
    for the alias may move before the weights are read: another training may end meanwhile.
    """
    import logging

    from navi_core.models import Registry, load_checkpoint
    from navi_core.models.lineage import same_network
    from navi_core.record import navi_home

    registry = Registry(navi_home() / "models")
    if "latest" not in registry.aliases():
        return "none"
    version = registry.resolve("latest")
    if same_network(config.policy, load_checkpoint(version.path)):
        return version.version
    logging.getLogger("navi.train").warning(
        "latest is %s, another network than this run's: it begins with new weights", version.version
    )
    return "none"


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

    from navi_core.models import record_registry

    numbers = {k: v for k, v in result.metrics.items() if k in ("episode_return", "episode_length", "sps")}
    version = registry.register(
        result.checkpoint,
        parents=parent_versions(registry, result.initial),
        metrics={"reward_ema": reward_of(result), "steps": float(result.steps), **numbers},
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


def reward_of(result: TrainResult) -> float | None:
    """Return the smoothed reward, None where the run ended before its first update."""
    import math

    return None if math.isnan(result.reward_ema) else result.reward_ema
