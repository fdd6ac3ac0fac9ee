"""Assembly of an actor server from model, alias follower, safety gate and continuous training."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from navi_core.config import ActorConfig, ContinuousTrainingConfig, EnvConfig
from navi_core.errors import ConfigError
from navi_core.models import Registry
from navi_core.record.home import load_scenes
from navi_core.service.actor.server import ActorServer
from navi_core.service.gate import RolloutGate
from navi_core.service.learning.flight_learning import FlightLearning
from navi_core.service.policies.served_model import AliasFollower, ServedModel, load_model, training_of
from navi_core.world import Field

_LOG = logging.getLogger("navi.service")


@contextmanager
def running_actor(
    source: str,
    config: ActorConfig,
    registry: Registry,
    *,
    scenes: Sequence[str] = (),
    resolution: int = 512,
    training: ContinuousTrainingConfig | None = None,
) -> Iterator[ActorServer]:
    """Context manager that yields an actor server; its alias follower is closed with the block.

    Args:
        source: A .pt checkpoint, a .onnx or .pt2 program, or a version or alias of the registry.
        config: Endpoints, gate, followed alias.
        registry: Model registry of versions and aliases.
        scenes: Scenes of the gate, as `load_scenes` takes them.
        resolution: Compile resolution of meshes and generated scenes.
        training: Continuous training; None does not train.

    Raises:
        ConfigError: A gate without scenes, or scenes without a gate.
    """
    if config.gate is not None and not scenes:
        # A gate with other scenes than the drones' makes every drone wait for ever.
        raise ConfigError(
            "--gate simulates in the scenes that the drones are in; add --scene FILE, as navi environment has"
        )
    if scenes and config.gate is None:
        raise ConfigError("--scene names the gate's scenes; add --gate")
    model = load_model(source, config, registry.path)
    follower = None
    if config.follow is not None:
        follower = AliasFollower(
            config.follow, model.name, lambda name: load_model(name, config, registry.path), registry,
            config.poll_seconds,
        )  # fmt: skip
    try:
        gate = _built_gate(model, config, registry.path, scenes, resolution)
        learning = None
        if training is not None and training.enabled:
            learning = FlightLearning(model, training, gate, config.seed, registry=registry)
        successor = follower.take if follower is not None else lambda: None
        yield ActorServer(model, config, successor=successor, gate=gate, learning=learning)
    finally:
        if follower is not None:
            follower.close()


def _built_gate(
    model: ServedModel, config: ActorConfig, models: Path, scenes: Sequence[str], resolution: int
) -> RolloutGate | None:
    if config.gate is None:
        return None
    env, vocabulary = (EnvConfig(), None) if model.checkpoint is None else training_of(str(model.path), models)
    field = Field(load_scenes(scenes, resolution), threads=config.threads, vocabulary=vocabulary)
    gate = RolloutGate(field, env, config.gate, capacity=config.max_sessions)
    if config.goal is not None and not gate.reaches(config.goal):
        _LOG.warning("no drone can reach the goal %s in these scenes; it is in a wall or outside", config.goal)
    return gate
