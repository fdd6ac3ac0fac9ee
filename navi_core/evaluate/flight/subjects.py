"""Evaluation subjects: resolves pilots by name, checkpoints, policies in memory and registered versions.

`Autopilot` flies each of them in custom loops over an environment (docs/how-to/export.md).
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from navi_core.config import EnvConfig, EvalConfig
from navi_core.errors import EvaluationError, RegistryError
from navi_core.evaluate.flight.frozen_starts import QUIET_SHAPER, Flyer, PilotFlyer, PolicyFlyer
from navi_core.models import ModelVersion, Registry, load_checkpoint, load_policy, trained_on, weights_hash
from navi_core.pilots import PILOTS, Pilot, Pose, build_pilot
from navi_core.policy import NavigationPolicy, custom_networks
from navi_core.record import navi_home
from navi_core.scenes import Scene
from navi_core.world import Field, NavigationEnv, StepBatch
from navi_core.world.occupancy_memory import pose_rows

OWN_NETWORKS = "own_networks"
"""Column with name and source digest of custom networks or a custom pilot; absent for built-in ones, which
`flight_code` covers."""


@dataclass(frozen=True)
class Subject:
    """Evaluation subject (policy or pilot) ready to be run, with its identity columns."""

    flyer: Flyer
    """Policy or pilot that maps observations to actions."""
    identity: dict[str, Any]
    """Identity columns: kind, checkpoint, run, training steps."""
    fingerprint: Callable[[], str | None]
    """Hash of the current weights; None without weights."""
    vocabulary: dict[str, int] | None = None
    """Semantic id by name of the training, where the checkpoint holds it."""
    trained_on: frozenset[str] = frozenset()
    """Content and source hashes of the training scenes, where the checkpoint holds them."""


def named_subject(name: str, registry: Registry) -> str | Path | ModelVersion:
    """Resolve a name to a pilot's name, a checkpoint's path, or a registered version.

    Raises:
        RegistryError: The name is none of these.
    """
    if name in PILOTS:
        return name
    return Path(name) if os.path.isfile(name) else registry.resolve(name)


def resolve_subject(
    subject: str | Path | Pilot | NavigationPolicy | ModelVersion | Subject,
    config: EvalConfig,
    *,
    name: str | None = None,
) -> Subject:
    """Resolve a subject, load its checkpoint if it has one, and wrap it for evaluation.

    Args:
        subject: Name of a pilot, path of a checkpoint, a pilot, a policy, a registered version, or a prepared subject.
        config: The protocol.
        name: Name in the results; by default the subject's own.

    Raises:
        EvaluationError: The name is unknown, or the policy has another decision rate.
        CheckpointError: The checkpoint cannot be loaded.
    """
    if isinstance(subject, Subject):
        subject.flyer.name = name or subject.flyer.name
        return subject
    if isinstance(subject, str) and subject in PILOTS:
        flown = _of_pilot(build_pilot(subject, seed=config.seed, dynamics=config.dynamics), config, name)
        source = PILOTS.source(subject)
        own = {} if source is None else {OWN_NETWORKS: f"pilot {subject} {source}"}
        return replace(flown, identity=flown.identity | own)
    if isinstance(subject, Pilot):
        return _of_pilot(subject, config, name)
    if isinstance(subject, NavigationPolicy):
        flyer = PolicyFlyer(subject, config, name=name or "policy")
        identity = {"subject_kind": "policy", "inputs": policy_inputs(subject, flyer, config)} | _custom_columns(
            subject.config.encoder, subject.config.core
        )
        return Subject(flyer, identity, lambda: weights_hash(subject.state_dict()))
    if isinstance(subject, ModelVersion):
        return _of_checkpoint(Path(subject.path), config, name or subject.version, "version")
    if isinstance(subject, str | Path):
        path = Path(subject)
        if not path.is_file():
            raise EvaluationError(
                f"no pilot and no checkpoint file {str(subject)!r}; pilots: {', '.join(PILOTS)}; "
                "checkpoints lie in the run directories, versions are listed by `navi models`"
            )
        return _of_checkpoint(path, config, name or path.stem, "checkpoint")
    raise EvaluationError(
        f"cannot evaluate a {type(subject).__name__}; give a pilot's name, a checkpoint, a policy, or an instance of a "
        "navi_core.pilots.Pilot subclass, which may call any network"
    )


def sensor_text(flyer: Flyer, config: EvalConfig) -> str:
    """Describe the sensor of a flight in a few words: directions, range, faults."""
    faults = config.sensor.model_dump(exclude_defaults=True)
    least, most = config.sensor.delays
    decisions = "one decision" if most == 1 else f"{most} decisions"
    late = [f"{least} to {decisions} late" if most > least else f"{decisions} late"] if most else []
    late += [f"a scan every {config.sensor.period} decisions"] if config.sensor.period > 1 else []
    for name in ("delayed", "delay", "period", "profiles"):
        faults.pop(name, None)
    noise = [f"{name} {value:g}" for name, value in faults.items()] or ["exact"]
    profiles = " or ".join(config.sensor.profiles).replace("_", " ") or "full sphere"
    shape = f"{profiles} {flyer.azimuth_bins}x{flyer.elevation_bins}, depth to {flyer.max_distance:g} m"
    return ", ".join([shape, *noise, *late])


def pose_text(config: EvalConfig, otherwise: str) -> str:
    """Describe the pose that subjects fly by: that of a drifting odometry, else as given."""
    drift = config.odometry
    if not (drift.scale or drift.gyro_degrees):
        return "exact odometry" if config.reckoned else otherwise
    return f"odometry off by {100 * drift.scale:g} % and {drift.gyro_degrees:g} °/s"


def pilot_inputs(pilot: Pilot, flyer: Flyer, config: EvalConfig) -> str:
    """Describe the inputs of a pilot in a few words."""
    if pilot.privileged or pilot.inputs == "none":
        return pilot.inputs
    seeks = pilot.seeks and config.task == "point_goal"
    pose = [pose_text(config, "exact pose" if seeks else "dead reckoning")] if pilot.reckons else []
    return f"{', '.join([pilot.inputs, *(['goal'] if seeks else []), *pose])}; {sensor_text(flyer, config)}"


def policy_inputs(policy: NavigationPolicy, flyer: Flyer, config: EvalConfig) -> str:
    """Describe the inputs of a policy in a few words: observation, map features, pose, goal, sensor."""
    c, pose = policy.config, pose_text(config, "exact pose")
    recovers = (c.recovery if config.recovery is None else config.recovery) and config.deterministic
    parts = {
        "frontier features of its occupancy memory": c.place_memory,
        "relative goal": c.goal,
        pose: c.place_memory or c.goal,
        f"{pose} for recovery": recovers and not (c.place_memory or c.goal),
    }
    given = ", ".join(["observation", *(name for name, has in parts.items() if has)])
    return f"{given}; {sensor_text(flyer, config)}"


def _custom_columns(encoder: str, core: str) -> dict[str, Any]:
    """Return the identity column with the code digest of custom networks, if there are any."""
    found = custom_networks(encoder, core)
    return {} if found is None else {OWN_NETWORKS: found}


def _of_pilot(pilot: Pilot, config: EvalConfig, name: str | None) -> Subject:
    flyer = PilotFlyer(pilot, config)
    flyer.name = name or pilot.name
    inputs = pilot_inputs(pilot, flyer, config)
    return Subject(flyer, {"subject_kind": "pilot", "privileged": pilot.privileged, "inputs": inputs}, lambda: None)


def _of_checkpoint(path: Path, config: EvalConfig, name: str, kind: str) -> Subject:
    policy, checkpoint = load_policy(path)
    rate = config.dynamics.decision_hz
    if abs(checkpoint.decision_hz - rate) > 1e-6:
        raise EvaluationError(
            f"{name} decides {checkpoint.decision_hz:g} times a second and the evaluation {rate:g} times; set "
            "dynamics.substep and dynamics.steps_per_decision as in training"
        )
    trained = checkpoint.train_config()
    flyer = PolicyFlyer(
        policy,
        config,
        name=name,
        # A clone was trained without rewards, with zero auxiliary inputs.
        shaper=QUIET_SHAPER if checkpoint.training_source == "bc" else trained.shaper,
        shaper_rows=trained.actors,
        shaper_state=checkpoint.curiosity(),
        max_distance=trained.env.max_distance,
    )
    identity = {
        "subject_kind": kind,
        "subject_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "checkpoint": str(path),
        "training_run_id": checkpoint.run_id,
        "training_steps": checkpoint.step_id,
        "training_source": checkpoint.training_source,
        "initial": checkpoint.extra.get("initial") or "new weights",
        "inputs": policy_inputs(policy, flyer, config),
    } | _custom_columns(checkpoint.encoder_backend, checkpoint.temporal_core)
    vocabulary = checkpoint.corpus_summary.get("semantic_vocabulary")
    return Subject(
        flyer,
        identity,
        lambda: weights_hash(policy.state_dict()),
        vocabulary=dict(vocabulary) if vocabulary else None,
        trained_on=trained_on(checkpoint),
    )


_Subject = str | Path | Pilot | NavigationPolicy | ModelVersion


class Autopilot:
    """Policy or pilot as a closed-loop controller for custom loops: maps an environment's observations to actions.

    It holds what a policy needs besides observations: recurrent state, auxiliary input, occupancy map, goals, recovery.
    Rows restart when their episode ends.

    Args:
        subject: A pilot's name, a version or alias in the registry of `$NAVI_HOME`, a checkpoint's path, a pilot, or a
            policy.
        env: Environment; sensor, decision rate and semantic ids must match the training.
        deterministic: Mean actions; else sampled ones.
        seed: Seed of sampled actions.
        recovery: Recovery of stuck drones; None takes the policy's setting.

    Attributes:
        name: Name of the subject.

    Raises:
        EvaluationError: The name is unknown, or the subject does not fit the environment.
        ConfigError: A scripted pilot with a negative seed.
        CheckpointError: The checkpoint cannot be loaded.
        RegistryError: Its file is missing.
    """

    def __init__(
        self,
        subject: _Subject,
        env: NavigationEnv,
        *,
        deterministic: bool = True,
        seed: int = 0,
        recovery: bool | None = None,
    ) -> None:
        c = env.config
        # An environment has more rows and seeds than a protocol.
        protocol = EvalConfig(
            azimuth_bins=c.azimuth_bins, elevation_bins=c.elevation_bins, task=c.task, deterministic=deterministic,
            recovery=recovery, dynamics=c.dynamics, goal=c.goal,
        ).model_copy(update={"block": env.num_envs, "seed": seed, "sensor": c.sensor})  # fmt: skip
        subject = _resolve_name(subject)
        if isinstance(subject, str) and subject in PILOTS:
            subject = build_pilot(subject, seed=seed, dynamics=c.dynamics, max_distance=c.max_distance)
        if isinstance(subject, NavigationPolicy):
            flyer = PolicyFlyer(subject, protocol, name="policy", max_distance=c.max_distance)
            found = Subject(flyer, {}, lambda: None)
        else:
            found = resolve_subject(subject, protocol)
        _require_fit(found, env)
        assert isinstance(found.flyer, PilotFlyer | PolicyFlyer)
        self.name, self._flyer, self._env = found.flyer.name, found.flyer, env
        self.begin()

    def begin(self) -> None:
        """Reset the controller for new episodes in all rows; call it after `env.reset`."""
        self._flyer.begin(self._keys(), self._env.field)

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Compute actions (B, 4) in [−1, 1] for the environment's latest observations (B, 3, Az, El)."""
        now = self._env.poses()
        goals = self._env.goals
        goal = None if goals is None else goals.of(now["scene_index"]).to(torch.float32)
        estimate = pose_rows(now["position"], now["yaw"]) if self._env.config.sensor.needs_odometry else None
        return self._flyer.act(obs, Pose(**now, goal=goal, estimate=estimate, scan_age=self._env.scan_age))

    def after_step(self, step: StepBatch) -> None:
        """Reset the state of rows whose episode ended; call it after every step."""
        ended = (step.truncated | step.terminated).cpu()
        if bool(ended.any()):
            self._flyer.restart(ended, self._keys())

    def _keys(self) -> Tensor:
        rows = torch.arange(self._env.num_envs)
        return rows + self._env.num_envs * self._env.counters["episode"].cpu()


def take_off(
    subject: str | Path | ModelVersion,
    scenes: Sequence[Scene],
    num_envs: int = 1,
    *,
    seed: int = 0,
    deterministic: bool = True,
    recovery: bool | None = None,
) -> tuple[NavigationEnv, Autopilot]:
    """Build an environment with the policy's training settings in other scenes, and its autopilot.

    Args:
        subject: A version or alias in the registry of `$NAVI_HOME`, or a checkpoint's path; a pilot's name takes the
            default environment.
        scenes: Scenes to fly in.
        num_envs: Number of drones.
        seed: Seed of spawns, goals and sampled actions.
        deterministic: See `Autopilot`.
        recovery: See `Autopilot`.

    Raises:
        EvaluationError: The name is unknown.
        SceneError: A scene has no viable spawn.
    """
    found = _resolve_name(subject)
    config, vocabulary = EnvConfig(), None
    if not (isinstance(found, str) and found in PILOTS):
        checkpoint = load_checkpoint(found.path if isinstance(found, ModelVersion) else Path(str(found)))
        # Staggered ages are for training: the first episodes would end at once.
        config = checkpoint.train_config().env.model_copy(update={"stagger": False})
        vocabulary = checkpoint.corpus_summary.get("semantic_vocabulary") or None
    env = NavigationEnv(Field(scenes, vocabulary=vocabulary), num_envs, config, seed)
    return env, Autopilot(found, env, deterministic=deterministic, seed=seed, recovery=recovery)


def _resolve_name(subject: _Subject) -> _Subject:
    """Resolve a registered name to its version; leave everything else unchanged."""
    if not isinstance(subject, str):
        return subject
    registry = Registry(navi_home() / "models")
    try:
        return named_subject(subject, registry)
    except RegistryError:
        known = {*registry.aliases(), *(entry.version for entry in registry.list())}
        if subject in known:
            raise
        raise EvaluationError(
            f"{subject!r} is no pilot ({', '.join(PILOTS)}), checkpoint file, version or alias in "
            f"{registry.path} ({', '.join(sorted(known)) or 'it is empty'})"
        ) from None


def _require_fit(found: Subject, env: NavigationEnv) -> None:
    """Validate that the environment's observations match those of the training."""
    flyer, c = found.flyer, env.config
    for name in ("azimuth_bins", "elevation_bins", "max_distance"):
        wanted, here = getattr(flyer, name), getattr(c, name)
        if wanted != here:
            raise EvaluationError(f"{flyer.name} reads {name} {wanted:g}, the environment has {here:g}; see take_off")
    if found.vocabulary:
        require_vocabulary(found, env.field.vocabulary, env.field.vocabulary, "give Field it, as take_off does")


def require_vocabulary(subject: Subject, vocabulary: Mapping[str, int], surfaces: Iterable[str], remedy: str) -> None:
    """Validate that the scenes' semantic ids match those of a policy's training.

    Args:
        subject: The policy.
        vocabulary: Semantic id by name in the scenes.
        surfaces: Names that occur.
        remedy: Advice on the policy's vocabulary, for the error message.
    """
    trained = subject.vocabulary or {}
    for surface in sorted(surfaces):
        here, there = vocabulary.get(surface, 1), trained.get(surface, 1)
        if here != there:
            raise EvaluationError(
                f"semantic id of {surface!r} is {here} in these scenes and {there} in the training of "
                f"{subject.flyer.name}; take the policy's vocabulary: {remedy}"
            )
