"""Online learning of an actor: collects experiences of its flights and runs continuous training on them."""

import logging
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from navi_core.config import ContinuousTrainingConfig, config_hash
from navi_core.errors import ConfigError, NaviError
from navi_core.models import Registry
from navi_core.policy import NavigationPolicy
from navi_core.policy.cores.base import State
from navi_core.policy.navigation_policy import AUX_INPUTS
from navi_core.record.events import CheckpointSaved, EventBus
from navi_core.service.gate import ActionChoice, RolloutGate
from navi_core.service.learning.admission import ServingVersion, ShadowFlight
from navi_core.service.learning.continuous_trainer import ContinuousTrainer, check_learnable, require_gate
from navi_core.service.learning.experience import Experience
from navi_core.service.learning.experience_record import ServiceRecord
from navi_core.service.learning.policy_update import LearnedWeights, recover_learned
from navi_core.service.learning.replay_buffer import ExperienceReplayBuffer
from navi_core.service.policies.served_model import Decision, EagerRunner, Runner, ServedModel
from navi_core.service.policies.sessions import Session
from navi_core.service.server import ServiceMetrics
from navi_core.service.wire import StepResult

_LOG = logging.getLogger("navi.service")
_GAUGES = (
    ("training_running", "training", "is_running", "does the trainer run?"),
    ("training_updates", "training", "total_steps", "updates made"),
    ("training_samples", "training", "total_samples_trained", "experiences learned from"),
    ("training_errors", "training", "errors", "errors that the trainer survived"),
    ("training_loss", "training", "average_loss", "mean loss of the last hundred updates"),
    ("training_gate_agreement", "training", "average_gate_agreement", "share of motions judged as before"),
    ("training_newest_version", "training", "model_version", "number of the newest weights"),
    ("buffer_completed", "buffer", "completed_count", "experiences whose reward came"),
    ("buffer_pending", "buffer", "pending_count", "experiences that wait for their reward"),
)
"""Prometheus gauges of the training: name, part of the status, entry there, help text."""


class FlightLearning:
    """Online learner of a service: collects experiences and owns the continuous trainer.

    Args:
        model: Computed eagerly: programs give neither log-probability nor latent.
        config: Configuration of the training.
        gate: None: every motion is sent, and none is validated.
        seed: Seed of samples and shadow evaluations.
        outbox: Where experiences and versions are recorded; None: that of the Navi home.
        registry: Gets the weights that serve at the end, or when another model takes over, and those that a killed
            service left, as versions; None drops them.

    Raises:
        ConfigError: The model is a program or cannot be learned on, or a setting needs a gate and there is none.

    Attributes:
        trainer: Continuous trainer; `close` ends its thread.
        events: Event bus of the service.
    """

    _runner: EagerRunner
    _version: int

    def __init__(
        self,
        model: ServedModel,
        config: ContinuousTrainingConfig,
        gate: RolloutGate | None,
        seed: int = 0,
        outbox: Path | None = None,
        registry: Registry | None = None,
    ) -> None:
        # Everything is checked before a journal is begun that nothing would be written to.
        policy, self._scale = _trainable(model)
        shadow = self._shadow = None
        if gate is not None and config.shadow_evaluation != "off":
            shadow = self._shadow = ShadowFlight(
                gate.field, gate.env, config.shadow_rows, config.shadow_decisions, seed
            )
        require_gate(config, gate, shadow)
        self._require_goals(model)
        self.config, self.gate = config, gate
        # Without a gate the actual reward counts whole.
        gated = (config.simulation_reward_weight, config.actual_reward_weight)
        self._weights = (0.0, 1.0) if gate is None else gated
        if config.train_on_wait and gate is not None and gate.config.slower:
            _LOG.warning(
                "training.train_on_wait: with gate.slower colliding motions fly slower instead of waiting, so there is "
                "next to nothing to learn from; next: --set gate.slower=[] lets them wait"
            )
        self.buffer = ExperienceReplayBuffer(config, seed, gated=gate is not None)
        self.record = ServiceRecord(model.name, seed, config_hash(config), outbox, config.record_share)
        self.events = EventBus()
        self.events.subject = self.record.run_id
        self._subscribers = ExitStack()
        self._subscribers.enter_context(self.events.recorded(self.record.events))
        self.trainer = ContinuousTrainer(
            policy, self.buffer, config, gate, scale=self._scale, shadow=shadow, record=self.record, save=self._save,
            events=self.events,
        )  # fmt: skip
        self._registry = registry
        if registry is not None:
            recover_learned(registry)
        self._begin_model(model)
        # By drone: the decision whose reward is awaited, whether to record it then, and its episode.
        self._awaited: dict[int, tuple[Experience, bool, int]] = {}
        # Present episode of each drone.
        self._episodes: dict[int, int] = {}

    def close(self) -> None:
        """Stop the trainer, register the learned weights as a version, and flush all records."""
        self.trainer.stop()
        self._register_learned()
        self._subscribers.close()
        self.record.close()

    def runner(self) -> Runner:
        """Return the inference runner of the latest admitted version."""
        serving = self.trainer.serving
        if serving.version != self._version:
            self._runner = EagerRunner(serving.policy, self._runner.name)
            self._version = serving.version
        return self._runner

    def adopt(self, model: ServedModel) -> None:
        """Switch the learning to another served model; the weights learned so far are registered.

        Raises:
            ConfigError: It cannot be trained on; nothing was changed.
        """
        policy, scale = _trainable(model)
        self._require_goals(model)
        self._register_learned()
        self.trainer.adopt(policy, scale)
        self._scale = scale
        self._awaited.clear()
        self._begin_model(model)

    def add(
        self,
        group: Sequence[Session],
        obs: Tensor,
        aux: Tensor,
        state: State,
        reset: Tensor,
        decision: Decision,
        choice: ActionChoice | None,
    ) -> None:
        """Add a batch of decisions to the buffer as pending experiences; their rewards follow by `complete`.

        Args:
            group: N drones.
            obs: (N, 3, Az, El).
            aux: (N, A) as given to the policy.
            state: Before the decisions.
            reset: (N,) an episode begins.
            decision: Actions, values, log-probabilities and latents.
            choice: Choice of the gate. A motion flown slower is learned as proposed, with its rewards: learning from
                unchanged motions alone would favour motions that the gate slows.
        """
        assert decision.log_prob is not None
        mean, deviation = self._scale
        scenes = None if self.gate is None else self.gate.scenes(torch.tensor([session.slot for session in group]))
        now = time.time()
        self._decisions += len(group)
        # The policy masks the auxiliary input of the step before where an episode begins.
        seen_aux = aux.clone()
        seen_aux[reset, :AUX_INPUTS] = 0.0
        for i, session in enumerate(group):
            self._track_episode(session)
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
                aux=seen_aux[i],
                scene=-1 if scenes is None else int(scenes[i]),
                weights=self._weights,
            )
            waits = choice is not None and not bool(choice.flown.send[i])
            if choice is not None:
                experience.gate_send = bool(choice.proposed.send[i])
                experience.expected_reward = float(choice.proposed.expected_reward[i])
                experience.components = {name: float(x[i]) for name, x in choice.proposed.components.items()}
            if waits and self.config.train_on_wait and experience.scene >= 0:
                experience.actual_reward = experience.expected_reward * self.config.wait_reward_multiplier
            added = self.buffer.add(experience, learn=not waits or experience.is_completed)
            if added and experience.is_completed:
                self.record.experience(experience)
            self._awaited[session.env_id] = (experience, added and not waits, session.matrix.episode_id)

    def complete(self, result: StepResult) -> None:
        """Complete a drone's pending experience with a step result; a result of another episode completes nothing."""
        experience, recorded, episode = self._awaited.pop(result.env_id, (None, False, 0))
        if experience is None or episode != result.episode_id:
            self.buffer.drop_pending(result.env_id)
            return
        ends = result.done or result.truncated
        # A motion that was held back stays in the trajectory of later decisions.
        completed = self.buffer.update_pending_reward(result.env_id, result.reward, ends=ends, terminated=result.done)
        if ends and not completed:
            self.buffer.end_trajectory(result.env_id, terminated=result.done)
        if completed and recorded:
            experience.actual_reward, experience.ends, experience.terminated = result.reward, ends, result.done
            self.record.experience(experience)
        if math.isfinite(result.reward):
            # The return of a version includes decisions that the gate held back.
            self.trainer.admission.observe(experience.model_version, result.reward, result.env_id, ends)

    def forget(self, env_id: int) -> None:
        """Drop the pending experience and the episode of a drone whose session ended."""
        self._awaited.pop(env_id, None)
        self._episodes.pop(env_id, None)
        self.buffer.forget(env_id)
        self.trainer.admission.forget(env_id)

    def status(self) -> dict[str, Any]:
        """Return the status of `training` and `buffer`, and the number of the served version."""
        return self.trainer.status() | {"serving_version": self.trainer.serving.version}

    def update_gauges(self, metrics: ServiceMetrics) -> None:
        """Set the Prometheus gauges of training and buffer."""
        status = self.status()
        for name, part, entry, about in _GAUGES:
            metrics.gauge(name, float(status[part][entry]), about=about)
        metrics.gauge("training_serving_version", status["serving_version"], about="number of the weights that serve")

    def _track_episode(self, session: Session) -> None:
        """Track a drone's episode; only episodes seen from their beginning count for a version's return."""
        drone, episode = session.env_id, session.matrix.episode_id
        last = self._episodes.get(drone)
        if last == episode:
            return
        self._episodes[drone] = episode
        if last is not None:
            # An episode without an end: its environment was restarted. After an end there is nothing to forget.
            self.trainer.admission.forget(drone)
        elif session.matrix.step_id != 0:
            self.trainer.admission.begin_partial(drone)

    def _begin_model(self, model: ServedModel) -> None:
        serving = self.trainer.serving
        self._model, self._decisions = model, 0
        self._runner, self._version = EagerRunner(serving.policy, model.name), serving.version
        self._first_version = serving.version
        self._learned = self._begin_learned()

    def _begin_learned(self) -> LearnedWeights | None:
        if self._registry is None:
            return None
        try:
            scenes = [] if self.gate is None else self.gate.field.scenes
            return LearnedWeights(self._registry, self._model, self.record.run_id, self._first_version, scenes)
        except (OSError, NaviError) as error:
            _LOG.warning("%s cannot be written now (%s): a kill loses the learned weights", self._registry.path, error)
            return None

    def _save(self, serving: ServingVersion) -> None:
        """Save the served weights to disk, against a kill; called by the trainer's thread, perhaps during `adopt`."""
        learned = self._learned
        if learned is not None:
            file = learned.save(serving.version, serving.policy, self._decisions)
            if file is not None:
                self.events.publish(CheckpointSaved(self.events.subject, serving.version, str(file)))

    def _register_learned(self) -> None:
        """Register the learned weights as a version; a failure is logged and does not end the service."""
        serving, model = self.trainer.serving, self._model
        learned = self._learned or self._begin_learned()
        if learned is None:
            return
        try:
            version = learned.register(serving.version, serving.policy, self._decisions)
        except Exception as error:
            ours = isinstance(error, NaviError)
            _LOG.error("the weights learned from %s cannot be registered: %s", model.name, error, exc_info=not ours)
            return
        if version is not None:
            _LOG.warning("learned from %s in %d decisions: version %s", model.name, self._decisions, version)

    def _require_goals(self, model: ServedModel) -> None:
        """Validate that shadow evaluations have goals if the policy flies to goals."""
        if self._shadow is not None and model.runner.config.goal and self._shadow.env.goals is None:
            raise ConfigError(
                f"{model.name} flies to goals, and shadow evaluations here have none; start the service with it, or "
                "with --set training.shadow_evaluation=off"
            )


def _trainable(model: ServedModel) -> tuple[NavigationPolicy, tuple[float, float]]:
    """Return a model's trainable policy, and mean and standard deviation of its return normalisation."""
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
