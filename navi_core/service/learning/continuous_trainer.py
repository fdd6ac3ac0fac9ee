"""Continuous (online) training: background thread that updates the policy from served flights; its metrics."""

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from navi_core.config import ContinuousTrainingConfig
from navi_core.errors import ConfigError, NaviError
from navi_core.models import weights_hash
from navi_core.policy import NavigationPolicy
from navi_core.record.events import EvaluationMade, EventBus, ParameterSync, ReplayUpdate, UpdateMade
from navi_core.service.gate import RolloutGate
from navi_core.service.learning.admission import Admission, ServingVersion, ShadowResult
from navi_core.service.learning.experience import Sample, judged_rewards
from navi_core.service.learning.experience_record import ServiceRecord
from navi_core.service.learning.policy_update import PolicyUpdate
from navi_core.service.learning.replay_buffer import ExperienceReplayBuffer
from navi_core.service.timed_lock import TimedLock

WINDOW = 100
"""Length of the rolling window of training metrics (updates)."""


class TrainingMetrics:
    """Rolling metrics of continuous training: updates, samples, gate agreement, errors; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Time, loss, samples, seconds, agreed and judged of each update.
        self._updates: deque[tuple[float, ...]] = deque(maxlen=WINDOW)
        self._started: float | None = None
        self._uptime = 0.0
        self.total_steps = self.total_samples = self.errors = self.total_agreed = self.total_judged = 0

    def started(self) -> None:
        """Start the uptime clock."""
        self._started = time.monotonic()

    def stopped(self) -> None:
        """Stop the uptime clock."""
        self._uptime, self._started = self._seconds_up(), None

    def record(self, *, loss: float, samples: int, seconds: float, agreed: int, judged: int) -> None:
        """Record the metrics of one update.

        Args:
            loss: Loss of the update.
            samples: Experiences learned from.
            seconds: Duration of the update [s].
            agreed: Experiences with the same verdict of the gate as in flight.
            judged: Experiences that the gate re-validated.
        """
        with self._lock:
            self._updates.append((time.monotonic(), loss, samples, seconds, agreed, judged))
            self.total_steps += 1
            self.total_samples += samples
            self.total_agreed += agreed
            self.total_judged += judged

    def error(self) -> None:
        """Count an exception that the training loop survived."""
        self.errors += 1

    def snapshot(self, *, is_running: bool, model_version: int) -> dict[str, Any]:
        """Return a snapshot of the metrics as the `training` part of the status."""
        with self._lock:
            updates = np.reshape(self._updates, (-1, 6)).T.tolist()
            steps, samples, agreed, judged = self.total_steps, self.total_samples, self.total_agreed, self.total_judged
        times, number = updates[0], max(len(updates[0]), 1)
        span = times[-1] - times[0] if times else 0.0
        _, loss, batch, seconds, lately_agreed, lately_judged = map(sum, updates)
        return {
            "is_running": is_running,
            "model_version": model_version,
            "steps_per_second": (number - 1) / span if span > 0 else 0.0,
            "average_loss": loss / number,
            "average_batch_size": batch / number,
            "average_step_time_ms": 1e3 * seconds / number,
            "average_gate_agreement": lately_agreed / lately_judged if lately_judged else 1.0,
            "lifetime_gate_agreement": agreed / judged if judged else 1.0,
            "total_steps": steps,
            "total_samples_trained": samples,
            "uptime_seconds": self._seconds_up(),
            "errors": self.errors,
        }

    def _seconds_up(self) -> float:
        return self._uptime + (0.0 if self._started is None else time.monotonic() - self._started)


_LOG = logging.getLogger("navi.service")


class ContinuousTrainer:
    """Continuous (online) trainer: updates the policy from the buffer every `training_interval` seconds in a thread.

    The trainer changes a copy of the policy; inference uses the latest admitted version. Locks are taken in the order
    buffer, trainer, model; none of them is held while an update or a shadow flight goes on.

    Args:
        policy: Version 0.
        buffer: Source of experiences.
        config: All settings.
        gate: Validates each experience again; None without one.
        scale: Mean and deviation of the returns in the critic's units.
        shadow: Compares a candidate with the version in service; needed for `shadow_evaluation`.
        record: Recorder of versions.
        save: Called with the version in service after every round of the thread.
        events: Event bus to which updates, shadow flights and versions are published.

    Raises:
        ConfigError: The policy chooses by action values, its critic has a separate trunk, or a shadow evaluation or
            the reward mode needs a gate and there is none.

    Attributes:
        admission: Admission controller, which holds the version in service.
        lock: Held while versions are numbered and handed over.
        metrics: Counts and rolling means.
        model_version: Number of the newest version; every update and every adopted policy is one.
    """

    def __init__(
        self,
        policy: NavigationPolicy,
        buffer: ExperienceReplayBuffer,
        config: ContinuousTrainingConfig | None = None,
        gate: RolloutGate | None = None,
        *,
        scale: tuple[float, float] = (0.0, 1.0),
        shadow: Callable[[NavigationPolicy, NavigationPolicy], ShadowResult] | None = None,
        record: ServiceRecord | None = None,
        save: Callable[[ServingVersion], None] | None = None,
        events: EventBus | None = None,
    ) -> None:
        self.config = c = config or ContinuousTrainingConfig()
        check_learnable(policy)
        require_gate(c, gate, shadow)
        self.buffer, self.gate, self._record, self._save = buffer, gate, record, save
        self._shadow, self._every = (None, 1) if c.shadow_evaluation == "off" else (shadow, c.shadow_evaluation)
        self.events = EventBus() if events is None else events
        self._added, self._held = 0, 0
        self.metrics = TrainingMetrics()
        self.model_version = 0
        self.admission = Admission(_frozen(policy), c.rollback_window)
        self._update = PolicyUpdate(copy.deepcopy(policy), c, scale)
        self.lock = TimedLock()
        self._generation = 0
        self._adopted: tuple[NavigationPolicy, tuple[float, float]] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.cpu_seconds = 0.0

    @property
    def serving(self) -> ServingVersion:
        """Policy version that inference uses."""
        return self.admission.serving

    @property
    def is_running(self) -> bool:
        """Whether the training thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> bool:
        """Start the training thread; a second start logs a warning and changes nothing."""
        if not self.config.enabled:
            _LOG.warning("continuous training is not enabled; nothing is started")
            return False
        if self.is_running:
            _LOG.warning("continuous training runs already; the second start changes nothing")
            return False
        self._stop.clear()
        self.metrics.started()
        self._thread = threading.Thread(target=self._loop, name="navi-trainer", daemon=True)
        self._thread.start()
        return True

    def stop(self, timeout: float = 5.0) -> bool:
        """Signal the training thread to stop and join it; return whether it ended within the timeout [s]."""
        self._stop.set()
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout)
        if thread.is_alive():
            _LOG.warning("continuous training does not stop within %.1f s", timeout)
            return False
        self.metrics.stopped()
        self._thread = None
        return True

    def adopt(self, policy: NavigationPolicy, scale: tuple[float, float] = (0.0, 1.0)) -> None:
        """Replace the trained weights by those of a new champion; experiences of the old ones are dropped.

        A running update or shadow flight is not waited for; its result is dropped.

        Raises:
            ConfigError: These weights cannot be learned on; nothing was changed.
        """
        check_learnable(policy)
        frozen = _frozen(policy)
        # First of all: the new network must not read latents of the old one.
        self.buffer.clear()
        with self.lock.held():
            self._generation += 1
            self._adopted = (policy, scale)
            self.model_version += 1
            _freed_without_lock = self.admission.replace(self.model_version, frozen)

    def train_once(self) -> bool:
        """Run one training update if the buffer holds enough experiences; return whether one was made."""
        with self.lock.held():
            generation = self._generation
            adopted, self._adopted = self._adopted, None
        if adopted is not None:
            self._update = PolicyUpdate(copy.deepcopy(adopted[0]), self.config, adopted[1])
        self._check_live_reward()
        self._announce_additions()
        start = time.perf_counter()
        sample = self.buffer.sample(self.config.batch_size)
        if sample is None or len(sample) < self.config.min_batch_size or generation != self._generation:
            return False
        judged = judged_rewards(sample, self.gate, self.config)
        if not judged.used.any():
            return False
        kept = np.flatnonzero(judged.used)
        used = Sample(
            sample.rows[kept],
            [sample.trajectories[i] for i in kept],
            None if sample.observation is None else sample.observation[torch.from_numpy(kept)],
        )
        loss = self._update.step(used, judged.reward[kept])
        seconds = time.perf_counter() - start
        # Only `adopt` changes the number meanwhile, and then this update is dropped.
        due = (self.model_version + 1) % self._every == 0
        candidate = _frozen(self._update.policy) if due else None
        with self.lock.held():
            if generation != self._generation:
                _LOG.info("an update of weights that were replaced meanwhile is dropped")
                return False
            self.model_version += 1
            version, serving = self.model_version, self.serving
        self.metrics.record(loss=loss, samples=len(used), seconds=seconds, agreed=judged.agreed, judged=judged.judged)
        numbers, passed = {"loss": loss, "samples": float(len(used))}, True
        subject = self.events.subject
        self.events.publish(UpdateMade(subject, version, self.metrics.total_steps, None, numbers))
        if candidate is not None and self._shadow is not None:
            result = self._shadow(candidate, serving.policy)
            numbers["shadow_difference"], passed = result.difference, result.passed
            judged_by = {"reward_difference": result.difference, "passed": float(passed)}
            self.events.publish(EvaluationMade(subject, version, "shadow flight", judged_by))
            if not passed:
                _LOG.info("version %d is held back: %+.4f reward a decision", version, result.difference)
        if candidate is None:
            fate = "trained"
        else:
            fate = "admitted" if passed and self._admit(version, candidate, generation) else "held"
        self._record_fate(version, fate, **numbers)
        return True

    def status(self) -> dict[str, Any]:
        """Return the status as plain data: `training` and `buffer`."""
        stats = self.buffer.get_stats()
        buffer = {name: stats[name] for name in ("capacity", "utilization", "pending_count", "completed_count")}
        training = self.metrics.snapshot(is_running=self.is_running, model_version=self.model_version)
        return {"training": training, "buffer": {"size": stats["buffer_size"]} | buffer}

    def _admit(self, version: int, candidate: NavigationPolicy, generation: int) -> bool:
        """Deploy a candidate version unless other weights were adopted meanwhile; return whether it was deployed."""
        with self.lock.held():
            is_current, before = generation == self._generation, self.serving.version
            _freed_without_lock = self.admission.admit(version, candidate) if is_current else None
        if is_current:
            self._announce_version(candidate, before, version)
        return is_current

    def _announce_version(self, policy: NavigationPolicy, before: int, version: int) -> None:
        counts = 0, self.metrics.total_steps, weights_hash(policy.state_dict()), before, version
        self.events.publish(ParameterSync(self.events.subject, self.model_version, *counts))

    def _announce_additions(self) -> None:
        """Publish the experiences that came since the last round."""
        stats = self.buffer.get_stats()
        added, held = int(stats["total_added"]), int(stats["buffer_size"])
        if added > self._added:
            count = added - self._added
            subject, step = self.events.subject, self.model_version
            self.events.publish(ReplayUpdate(subject, step, 0, "added", count, self._held, held))
        self._added, self._held = added, held

    def _check_live_reward(self) -> None:
        """Roll back if the live reward of the served version fell; only with shadow evaluation."""
        if self._shadow is None:
            return
        back = self.admission.roll_back()
        if back is None:
            return
        before = back.returned_to
        _LOG.warning("the live reward of version %d fell; version %d serves again", back.version, before.version)
        # No rollback crosses an adoption, so the critic's units are unchanged.
        self._announce_version(before.policy, back.version, before.version)
        policy = copy.deepcopy(before.policy).requires_grad_(True)
        self._update = PolicyUpdate(policy, self.config, self._update.scale)
        self._record_fate(back.version, "rolled_back", live_reward=back.live_reward, returned_to=float(before.version))

    def _record_fate(self, version: int, fate: str, **numbers: float) -> None:
        if self._record is not None:
            self._record.version(version, fate, **({"live_reward": self.admission.live_mean()} | numbers))

    def _loop(self) -> None:
        while not self._stop.is_set():
            start, cpu = time.monotonic(), time.thread_time()
            try:
                self.train_once()
                if self._record is not None:
                    self._record.flush()
                if self._save is not None:
                    self._save(self.serving)
            except Exception as error:
                # The drones fly on, and the next batch may be sound.
                self.metrics.error()
                ours = isinstance(error, NaviError)
                _LOG.error("an update of continuous training failed; it goes on: %s", error, exc_info=not ours)
            self.cpu_seconds += time.thread_time() - cpu
            took = time.monotonic() - start
            if took > self.config.training_interval:
                _LOG.warning(
                    "an update took %.2f s, longer than the interval of %.2f s", took, self.config.training_interval
                )
            self._stop.wait(max(0.0, self.config.training_interval - took))


def check_learnable(policy: NavigationPolicy, name: str = "this policy") -> None:
    """Validate that a policy supports online (continual) training while it is served.

    Args:
        policy: Policy whose configuration is validated.
        name: In the message.

    Raises:
        ConfigError: It chooses by action values, or its critic has a separate trunk.
    """
    if policy.config.distribution == "q":
        # The choice of the best action has no gradient, and without exploration nothing to compare with.
        raise ConfigError(
            f"{name} chooses by action values (distribution q, as dqn and Ape-X learn them), which have no policy "
            "gradient; continuous training takes checkpoints of ppo, grpo, dpo and bc. Serve this one without --learn"
        )
    if policy.config.separate_value:
        raise ConfigError(
            f"{name} has separate_value; continuous training needs one trunk for actor and critic. Serve it without "
            "--learn, or train it without separate_value"
        )


def require_gate(config: ContinuousTrainingConfig, gate: RolloutGate | None, shadow: object | None) -> None:
    """Validate that settings which need a gate have one.

    Args:
        config: Configuration of the training.
        gate: None without one.
        shadow: Flies shadow evaluations, in the gate's scenes.

    Raises:
        ConfigError: A shadow evaluation has no scenes, or the gate is to compute the reward and there is none.
    """
    if config.shadow_evaluation != "off" and shadow is None:
        raise ConfigError("shadow_evaluation needs a gate's scenes; add --gate --scene FILE, or set it to off")
    if config.reward_mode == "gate_signal" and gate is None:
        raise ConfigError("reward_mode gate_signal learns from the gate alone; give --gate, or another reward_mode")


def _frozen(policy: NavigationPolicy) -> NavigationPolicy:
    """Return a frozen copy for inference (eval mode, no gradients) while the original is trained."""
    return copy.deepcopy(policy).eval().requires_grad_(False)
