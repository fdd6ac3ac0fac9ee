"""What an actor does besides acting: remember what was flown, to learn from it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from navi_core.config import ContinuousTrainingConfig
from navi_core.errors import ConfigError, NaviError
from navi_core.models import Registry
from navi_core.policy.cores.base import State
from navi_core.policy.trunk import AUX_INPUTS
from navi_core.service.gate.action_candidates import Proposal
from navi_core.service.gate.gate import RolloutGate
from navi_core.service.learning.admission import ServingVersion
from navi_core.service.learning.continuous_trainer import ContinuousTrainer, check_learnable, require_gate
from navi_core.service.learning.experience import Experience
from navi_core.service.learning.experience_record import ServiceRecord
from navi_core.service.learning.learned_version import LearnedWeights, recover_learned
from navi_core.service.learning.replay_buffer import ExperienceReplayBuffer
from navi_core.service.learning.shadow import ShadowFlight
from navi_core.service.metrics import ServiceMetrics
from navi_core.service.policies.runner import Decision, EagerRunner, Runner
from navi_core.service.policies.served_model import ServedModel
from navi_core.service.policies.sessions import Session
from navi_core.service.wire import StepResult

__all__ = ["FlightLearning"]

_LOG = logging.getLogger("navi.service")


class FlightLearning:
    """Collects experiences of a service and trains on them.

    Args:
        model: Must be computed eagerly: programs tell neither log-probability nor latent.
        config: Of the training.
        gate: None: every motion is sent, and nothing is validated.
        seed: Of samples and shadow evaluations.
        outbox: Where experiences and versions are recorded; None: that of the Navi home.
        registry: The weights that serve at the end, or where another model takes over, become a version there, and
            those that a killed service left; None lets them go.

    Raises:
        ConfigError: The model is a program or cannot be learned on, or a setting needs a gate and there is none.

    Attributes:
        trainer: The trainer; its thread runs from `start` to `close`.
    """

    def __init__(
        self,
        model: ServedModel,
        config: ContinuousTrainingConfig,
        gate: RolloutGate | None,
        seed: int = 0,
        outbox: Path | None = None,
        registry: Registry | None = None,
    ) -> None:
        from navi_core.config import config_hash

        # All that may be refused comes before a journal is begun that nobody would write.
        policy, self._scale = _trainable(model)
        shadow = self._shadow = None
        if gate is not None and config.shadow_evaluation != "off":
            shadow = self._shadow = ShadowFlight(
                gate.field, gate.env, config.shadow_rows, config.shadow_decisions, seed
            )
        require_gate(config, gate, shadow)
        self._require_goals(model)
        self.config, self.gate = config, gate
        self.buffer = ExperienceReplayBuffer(config, seed, gated=gate is not None)
        self.record = ServiceRecord(model.name, seed, config_hash(config), outbox, config.record_share)
        self.trainer = ContinuousTrainer(
            policy, self.buffer, config, gate, scale=self._scale, shadow=shadow, record=self.record, save=self._save
        )
        self._runner = EagerRunner(self.trainer.serving.policy, model.name)
        self._version = self._loaded = self.trainer.serving.version
        self._model, self._registry, self._decisions = model, registry, 0
        if registry is not None:
            recover_learned(registry)
        self._learned = self._begin_learned()
        # Of each drone the decision whose reward is awaited, whether it is learned from then, and its episode.
        self._awaited: dict[int, tuple[Experience, bool, int]] = {}
        # Of each drone the episode that it is in.
        self._episodes: dict[int, int] = {}

    def start(self) -> None:
        """Start the trainer."""
        self.trainer.start()

    def close(self) -> None:
        """Stop the trainer, keep what was learned, and make what was recorded durable."""
        self.trainer.stop()
        self._keep_learned()
        self.record.close()

    def runner(self) -> Runner:
        """Return what computes the latest admitted version."""
        serving = self.trainer.serving
        if serving.version != self._version:
            self._runner = EagerRunner(serving.policy, self._runner.name)
            self._version = serving.version
        return self._runner

    def adopt(self, model: ServedModel) -> None:
        """Go on from another model.

        Raises:
            ConfigError: It cannot be trained on; nothing was changed.
        """
        policy, scale = _trainable(model)
        self._require_goals(model)
        self._keep_learned()
        self.trainer.adopt(policy, scale)
        self._scale, self._model, self._decisions = scale, model, 0
        self._awaited.clear()
        serving = self.trainer.serving
        self._runner, self._version = EagerRunner(serving.policy, model.name), serving.version
        self._loaded = serving.version
        self._learned = self._begin_learned()

    def decided(
        self,
        group: Sequence[Session],
        obs: Tensor,
        aux: Tensor,
        state: State,
        reset: Tensor,
        decision: Decision,
        proposal: Proposal | None,
    ) -> None:
        """Remember decisions; their rewards will come.

        Args:
            group: N drones.
            obs: (N, 3, Az, El).
            aux: (N, A) as given to the policy.
            state: Before the decisions.
            reset: (N,) an episode begins.
            decision: Actions, values, log-probabilities and latents.
            proposal: What the gate said. A motion flown slower is learned from as it was drawn, with the reward that
                came and what the gate expects of it: who learns from what passes alone comes to draw what does not.
        """
        assert decision.latent is not None and decision.log_prob is not None
        mean, deviation = self._scale
        scenes = None if self.gate is None else self.gate.scenes(torch.tensor([session.slot for session in group]))
        now = time.time()
        self._decisions += len(group)
        # What the policy saw: where an episode begins it is told nothing of the step before.
        told = aux.clone()
        told[reset, :AUX_INPUTS] = 0.0
        for i, session in enumerate(group):
            self._follow(session)
            experience = Experience(
                session_id=session.env_id,
                latent=decision.latent[i],
                recurrent_state=tuple(part[i] for part in state),
                action=decision.action[i],
                log_prob=float(decision.log_prob[i]),
                value=float(decision.value[i]) * deviation + mean,
                begins=bool(reset[i]),
                position=torch.tensor(session.position),
                yaw=session.matrix.robot_pose.yaw,
                velocity=session.velocity_before,
                timestamp=now,
                model_version=self._version,
                observation=obs[i] if self.config.store == "observation" else None,
                aux=told[i],
                scene=-1 if scenes is None else int(scenes[i]),
            )
            waits = False
            if proposal is not None:
                drawn, waits = proposal.drawn, not bool(proposal.flown.send[i])
                experience.gate_send = bool(drawn.send[i])
                experience.expected_reward = float(drawn.expected_reward[i])
                experience.components = {name: float(part[i]) for name, part in drawn.components.items()}
            learned = not waits
            if waits and self.config.train_on_wait and experience.scene >= 0:
                experience.actual_reward = experience.expected_reward * self.config.wait_reward_multiplier
            taken = self.buffer.add(experience, learn=learned or experience.is_completed)
            if taken and experience.is_completed:
                self.record.experience(experience)
            self._awaited[session.env_id] = (experience, taken and learned, session.matrix.episode_id)

    def came(self, result: StepResult) -> None:
        """Complete the experience that a reward belongs to; another episode's reward completes nothing."""
        awaited = self._awaited.pop(result.env_id, None)
        if awaited is None or awaited[2] != result.episode_id:
            self.buffer.drop_pending(result.env_id)
            return
        experience, learned, _ = awaited
        ends = result.done or result.truncated
        # That of a motion that was held back is the past of later ones.
        completed = self.buffer.update_pending_reward(result.env_id, result.reward, ends=ends, terminated=result.done)
        if ends and not completed:
            self.buffer.end_trail(result.env_id, terminated=result.done)
        if completed and learned:
            experience.actual_reward, experience.ends, experience.terminated = result.reward, ends, result.done
            self.record.experience(experience)
        if math.isfinite(result.reward):
            # What a version earns, it earns with the motions too that the gate held back.
            self.trainer.observe_reward(experience.model_version, result.reward, result.env_id, ends)

    def forget(self, env_id: int) -> None:
        """Let go what waits for more of a drone that is gone."""
        self._awaited.pop(env_id, None)
        self._episodes.pop(env_id, None)
        self.buffer.forget(env_id)
        self.trainer.admission.forget(env_id)

    def _follow(self, session: Session) -> None:
        """Note in which episode a drone is; only those that were seen whole say what a version earns."""
        drone, episode = session.env_id, session.matrix.episode_id
        last = self._episodes.get(drone)
        if last == episode:
            return
        self._episodes[drone] = episode
        if last is not None:
            # Where the one before had no end, its environment was started again; else there is nothing to forget.
            self.trainer.admission.forget(drone)
        elif session.matrix.step_id != 0:
            self.trainer.admission.meet(drone)

    def _begin_learned(self) -> LearnedWeights | None:
        if self._registry is None:
            return None
        try:
            scenes = [] if self.gate is None else self.gate.field.scenes
            return LearnedWeights(self._registry, self._model, self.record.run_id, self._loaded, scenes)
        except (OSError, NaviError) as error:
            _LOG.warning("%s cannot be written now (%s): a kill loses what is learned", self._registry.path, error)
            return None

    def _save(self, serving: ServingVersion) -> None:
        """Keep weights where a kill leaves them; the trainer's thread asks, while a successor may take over."""
        learned = self._learned
        if learned is not None:
            learned.save(serving.version, serving.policy, self._decisions)

    def _keep_learned(self) -> None:
        """Register what was learned; what cannot be kept is an error in the log, not the service's end."""
        serving, model = self.trainer.serving, self._model
        learned = self._learned or self._begin_learned()
        if learned is None:
            return
        try:
            version = learned.register(serving.version, serving.policy, self._decisions)
        except Exception:
            _LOG.exception("what was learned from %s could not be kept", model.name)
            return
        if version is not None:
            _LOG.warning("what was learned from %s in %d decisions is %s", model.name, self._decisions, version)

    def _require_goals(self, model: ServedModel) -> None:
        """Refuse a policy for goals where shadow evaluations are flown without any."""
        if self._shadow is not None and model.runner.config.goal and not self._shadow.has_goals:
            raise ConfigError(
                f"{model.name} flies to goals, and shadow evaluations here have none; start the service with it, or "
                "with --set training.shadow_evaluation=off"
            )

    def status(self) -> dict[str, Any]:
        """Return the status: `training` and `buffer`, and the number of the version that serves."""
        return self.trainer.status() | {"serving_version": self.trainer.serving.version}

    def tell(self, metrics: ServiceMetrics) -> None:
        """Set the gauges that say how the learning goes."""
        told = self.status()
        training, buffer = told["training"], told["buffer"]
        for name, value, about in (
            ("training_running", training["is_running"], "does the trainer run?"),
            ("training_updates", training["total_steps"], "updates made"),
            ("training_samples", training["total_samples_trained"], "experiences learned from"),
            ("training_errors", training["errors"], "errors that the trainer survived"),
            ("training_loss", training["average_loss"], "mean loss of the last hundred updates"),
            ("training_gate_agreement", training["average_gate_agreement"], "share of motions judged as before"),
            ("training_newest_version", training["model_version"], "number of the newest weights"),
            ("training_serving_version", told["serving_version"], "number of the weights that serve"),
            ("buffer_completed", buffer["completed_count"], "experiences whose reward came"),
            ("buffer_pending", buffer["pending_count"], "experiences that wait for their reward"),
        ):
            metrics.gauge(name, float(value), about=about)


def _trainable(model: ServedModel) -> tuple[Any, tuple[float, float]]:
    """Return a model's policy, and mean and deviation of the returns that its critic's units are."""
    if not isinstance(model.runner, EagerRunner):
        raise ConfigError(f"{model.name} is a program; continuous training needs a checkpoint and --runtime eager")
    if model.runner.device.type != "cpu":
        raise ConfigError(f"{model.name} is computed on {model.runner.device}; continuous training needs --device cpu")
    check_learnable(model.runner.policy, model.name)
    moments = {} if model.checkpoint is None else model.checkpoint.normalisers.get("value_scale") or {}
    if not moments:
        return model.runner.policy, (0.0, 1.0)
    mean, square = float(moments["mean"]), float(moments["square"])
    return model.runner.policy, (mean, max(square - mean**2, 1e-8) ** 0.5)
