"""Autopilot: a pilot or trained policy for custom loops over an environment (docs/guides/EXPORT.md)."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from navi_core.config import EnvConfig, EvalConfig
from navi_core.errors import EvaluationError, RegistryError
from navi_core.evaluate.flight.flyers import PilotFlyer, PolicyFlyer
from navi_core.evaluate.flight.subjects import Subject, named_subject, resolve_subject
from navi_core.models import ModelVersion, Registry, load_checkpoint
from navi_core.pilots import PILOTS, Pilot, Pose, build_pilot
from navi_core.policy import NavigationPolicy
from navi_core.record import navi_home
from navi_core.scenes import Scene
from navi_core.world import Field, NavigationEnv, StepBatch

_Subject = str | Path | Pilot | NavigationPolicy | ModelVersion


class Autopilot:
    """Maps observations of an environment to actions.

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
        protocol = EvalConfig(
            azimuth_bins=c.azimuth_bins, elevation_bins=c.elevation_bins, task=c.task, deterministic=deterministic,
            recovery=recovery, dynamics=c.dynamics, goal=c.goal,
        )  # fmt: skip
        # An environment has more rows and seeds than a protocol.
        protocol = protocol.model_copy(update={"block": env.num_envs, "seed": seed})
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
        """Start new episodes in all rows; call it after `env.reset`."""
        self._flyer.begin(self._keys(), self._env.field)

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Return actions (B, 4) in [−1, 1] for the environment's latest observations (B, 3, Az, El)."""
        now = self._env.poses()
        goals = self._env.goals
        goal = None if goals is None else goals.of(now["scene_index"]).to(torch.float32)
        return self._flyer.act(obs, Pose(now["position"], now["yaw"], now["scene_index"], goal))

    def after_step(self, step: StepBatch) -> None:
        """Restart the rows whose episode ended; call it after every step."""
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
    """Return an environment with the policy's training settings in other scenes, and its autopilot.

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
    """Return the version of a registered name; everything else unchanged."""
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
    """Refuse an environment whose observations differ from those of the training."""
    flyer, c = found.flyer, env.config
    for name in ("azimuth_bins", "elevation_bins", "max_distance"):
        wanted, here = getattr(flyer, name), getattr(c, name)
        if wanted != here:
            raise EvaluationError(f"{flyer.name} reads {name} {wanted:g}, the environment has {here:g}; see take_off")
    if not found.vocabulary:
        return
    for surface, here in sorted(env.field.vocabulary.items()):
        there = found.vocabulary.get(surface, 1)
        if here != there:
            raise EvaluationError(
                f"semantic id of {surface!r} is {here} in the environment, {there} in the training of {flyer.name}; "
                "give Field the policy's vocabulary, as take_off does"
            )
