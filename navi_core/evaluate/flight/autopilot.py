"""A pilot or a trained policy that flies an environment's drones, for loops of one's own (docs/guides/EXPORT.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

__all__ = ["Autopilot", "take_off"]


class Autopilot:
    """Answers observations of an environment with actions.

    What a policy needs besides observations is kept and made here: its recurrent state, its auxiliary input, its map,
    the goals it is told, the recovery it was trained to be flown with. Episodes of the rows end when they do.

    Args:
        subject: A pilot's name, a version or alias of the registry of `$NAVI_HOME`, a checkpoint's path, a pilot, or a
            policy of your own.
        env: Whose drones are flown; sensor, decision rate and semantic ids must be those of the training.
        deterministic: The most typical action; else drawn ones, functions of the seed.
        seed: Of what is drawn.
        recovery: Disturb drones that are stuck; None as the policy was trained to be flown.

    Attributes:
        name: Name of the subject.

    Raises:
        EvaluationError: Nothing of that name, or it does not fit the environment; says in what.
        ConfigError: A scripted pilot and a seed below 0.
        CheckpointError: The checkpoint cannot be loaded.
        RegistryError: Its file is missing.
    """

    def __init__(
        self,
        subject: str | Path | Pilot | NavigationPolicy | ModelVersion,
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
        subject = _named(subject)
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
        """Forget everything; needed after `env.reset`, and done when this is made."""
        self._flyer.begin(self._keys(), self._env.field)

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """Return the (B, 4) actions in [−1, 1] for observations (B, 3, Az, El) as the environment gave them last."""
        now = self._env.poses()
        goals = self._env.goals
        goal = None if goals is None else goals.of(now["scene_index"]).to(torch.float32)
        return self._flyer.act(obs, Pose(now["position"], now["yaw"], now["scene_index"], goal))

    def took(self, step: StepBatch) -> None:
        """Take note of a step: rows whose episode ended begin anew. Call it after every step."""
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
    """Return an environment as a policy was trained in, with your scenes, and the autopilot that flies it there.

    Args:
        subject: A version or alias of the registry of `$NAVI_HOME`, or a checkpoint's path; a pilot's name flies the
            default environment.
        scenes: Where to fly.
        num_envs: Drones.
        seed: Of spawns, goals and what is drawn.
        deterministic: As of `Autopilot`.
        recovery: As of `Autopilot`.

    Raises:
        EvaluationError: Nothing of that name.
        SceneError: A scene without a viable spawn.
    """
    found = _named(subject)
    config, vocabulary = EnvConfig(), None
    if not (isinstance(found, str) and found in PILOTS):
        checkpoint = load_checkpoint(found.path if isinstance(found, ModelVersion) else Path(str(found)))
        # Ages that differ are for learning: the first episodes would end at once.
        config = checkpoint.train_config().env.model_copy(update={"stagger": False})
        vocabulary = checkpoint.corpus_summary.get("semantic_vocabulary") or None
    env = NavigationEnv(Field(scenes, vocabulary=vocabulary), num_envs, config, seed)
    return env, Autopilot(found, env, deterministic=deterministic, seed=seed, recovery=recovery)


def _named(subject: Any) -> Any:
    """Return the version that a name means; whatever is no name, or a pilot's or a file's, as it is."""
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
            f"{subject!r} is no pilot ({', '.join(PILOTS)}), no checkpoint file and no version or alias in "
            f"{registry.path} ({', '.join(sorted(known)) or 'it is empty'})"
        ) from None


def _require_fit(found: Subject, env: NavigationEnv) -> None:
    """Refuse an environment whose observations mean something else than in the training."""
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
