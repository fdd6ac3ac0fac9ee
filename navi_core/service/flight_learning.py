"""What an actor does besides acting: remember what was flown, to learn from it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from navi_core.config import ContinuousTrainingConfig
from navi_core.errors import ConfigError
from navi_core.policy.cores.base import State
from navi_core.policy.trunk import AUX_INPUTS
from navi_core.service.continuous_trainer import ContinuousTrainer, check_learnable, require_gate
from navi_core.service.experience import Experience
from navi_core.service.experience_record import ServiceRecord
from navi_core.service.gate import GateVerdict, RolloutGate
from navi_core.service.replay_buffer import ExperienceReplayBuffer
from navi_core.service.runner import Decision, EagerRunner, Runner
from navi_core.service.served_model import ServedModel
from navi_core.service.sessions import Session
from navi_core.service.shadow import ShadowFlight
from navi_core.service.wire import StepResult

__all__ = ["FlightLearning"]


class FlightLearning:
    """Collects experiences of a service and trains on them.

    Args:
        model: Must be computed eagerly: programs tell neither log-probability nor latent.
        config: Of the training.
        gate: None: every motion is sent, and nothing is validated.
        seed: Of samples and shadow evaluations.
        outbox: Where experiences and versions are recorded; None: that of the Navi home.

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
        self.buffer = ExperienceReplayBuffer(config, seed)
        self.record = ServiceRecord(model.name, seed, config_hash(config), outbox)
        self.trainer = ContinuousTrainer(
            policy, self.buffer, config, gate, scale=self._scale, shadow=shadow, record=self.record
        )
        self._runner = EagerRunner(self.trainer.serving.policy, model.name)
        self._version = self.trainer.serving.version
        self._pending: dict[int, tuple[Experience, int]] = {}

    def start(self) -> None:
        """Start the trainer."""
        self.trainer.start()

    def close(self) -> None:
        """Stop the trainer and make what was recorded durable."""
        self.trainer.stop()
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
        self.trainer.adopt(policy, scale)
        self._scale = scale
        self._pending.clear()
        serving = self.trainer.serving
        self._runner, self._version = EagerRunner(serving.policy, model.name), serving.version

    def decided(
        self,
        group: Sequence[Session],
        obs: Tensor,
        aux: Tensor,
        state: State,
        reset: Tensor,
        decision: Decision,
        verdict: GateVerdict | None,
    ) -> None:
        """Remember decisions; their rewards will come.

        Args:
            group: N drones.
            obs: (N, 3, Az, El).
            aux: (N, A) as given to the policy.
            state: Before the decisions.
            reset: (N,) an episode begins.
            decision: Actions, values, log-probabilities and latents.
            verdict: Of the gate on the motions as they were drawn: what was flown slower was not sent.
        """
        assert decision.latent is not None and decision.log_prob is not None
        mean, deviation = self._scale
        scenes = None if self.gate is None else self.gate.scenes(torch.tensor([session.slot for session in group]))
        now = time.time()
        # What the policy saw: where an episode begins it is told nothing of the step before.
        told = aux.clone()
        told[reset, :AUX_INPUTS] = 0.0
        for i, session in enumerate(group):
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
            if verdict is not None:
                experience.gate_send = bool(verdict.send[i])
                experience.expected_reward = float(verdict.expected_reward[i])
                experience.components = {name: float(part[i]) for name, part in verdict.components.items()}
            waits = not experience.gate_send
            if waits and self.config.train_on_wait:
                experience.actual_reward = experience.expected_reward * self.config.wait_reward_multiplier
                if self.buffer.add(experience):
                    self.record.experience(experience)
            elif self.buffer.add(experience, learn=not waits) and not waits:
                self._pending[session.env_id] = (experience, session.matrix.episode_id)

    def came(self, result: StepResult) -> None:
        """Complete the experience that a reward belongs to; another episode's reward completes nothing."""
        experience, episode_id = self._pending.pop(result.env_id, (None, 0))
        end = {"ends": result.done or result.truncated, "terminated": result.done}
        if experience is None:
            # A motion that was held back or slowed: its reward is the past of later ones.
            self.buffer.update_pending_reward(result.env_id, result.reward, **end)
            return
        if episode_id != result.episode_id:
            self.buffer.drop_pending(result.env_id)
            return
        if self.buffer.update_pending_reward(result.env_id, result.reward, **end):
            experience.actual_reward, experience.ends = result.reward, end["ends"]
            experience.terminated = end["terminated"]
            self.record.experience(experience)
            self.trainer.observe_reward(experience.model_version, result.reward)

    def _require_goals(self, model: ServedModel) -> None:
        """Refuse a policy for goals where shadow evaluations are flown without any."""
        if self._shadow is not None and model.runner.config.goal and not self._shadow.has_goals:
            raise ConfigError(
                f"{model.name} flies to goals, and shadow evaluations here have none; start the service with it, or "
                "with --set training.shadow_evaluation=off"
            )

    def status(self) -> dict[str, Any]:
        """Return the status: `training` and `buffer`."""
        return self.trainer.status()


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
