"""Double DQN learner: prioritised replay, n-step targets, target network (van Hasselt 2016, Schaul 2016).

It runs in the common run loop: every rollout is converted to replay items, then the number of gradient steps follows
from the replay ratio. Memoryless policies learn from single transitions, recurrent ones from sequences with a stored
initial state (R2D2, Kapturowski et al. 2019).
"""

import copy
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from navi_core.config import SmoothingConfig, TrainConfig
from navi_core.errors import ConfigError, NonFiniteError
from navi_core.learn.algorithms.gradient_steps import UpdateStats, clip_gradients
from navi_core.learn.estimators.drift_smoother import compute_knn_kernel, local_structure
from navi_core.learn.estimators.noise import epsilons, scheduled
from navi_core.learn.events import AGMConfig
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.replay.prioritized import PrioritizedReplay, Replay
from navi_core.learn.replay.q_batches import QBatch, QSmoothing, SequenceBatches, TransitionBatches, make_batches
from navi_core.learn.replay.replay_file import load_replay, prune_replays, save_replay
from navi_core.learn.rollout.execution import stage_timer
from navi_core.learn.rollout.storage import ObservationCodec, Rollout
from navi_core.policy import NavigationPolicy, RewardShaper
from navi_core.policy.distributions import table_index
from navi_core.policy.heads import QHead
from navi_core.record import StageTimer
from navi_core.record.events import EventBus, ReplayUpdate

_NEIGHBOURHOOD = 256
_FIGURES = ("q_loss", "td_mean", "td_var", "q_mean", "target_mean", "grad_norm")


class DQNLearner:
    """Double DQN learner over a prioritised replay buffer.

    Args:
        policy: `NavigationPolicy` with a Q head; this learner sets its ε.
        shaper: `RewardShaper`; its RND predictor, if it has one, is trained on the minibatches' embeddings.
        config: The run's configuration.
        device: Training device.
        workers: Data-parallel learners: each evaluates the items that its part of `replay` sampled, and all apply
            the summed gradient.
        replay: Replay buffer to sample from; by default a `PrioritizedReplay` of this learner, filled by `update`.

    Attributes:
        replay: Replay buffer of transitions or sequences.
        target: The target network, a policy.
        gradient_steps: Gradient steps taken.
        events: Event bus for changes of the replay (`ReplayUpdate`); the run sets its own.

    Raises:
        ConfigError: The policy has no Q head, or there are several processes and no replay that they share.
    """

    def __init__(
        self,
        policy: NavigationPolicy,
        shaper: RewardShaper,
        config: TrainConfig,
        device: torch.device,
        workers: Workers = ALONE,
        replay: Replay | None = None,
    ) -> None:
        if not isinstance(policy.heads, QHead):
            raise ConfigError("algorithm dqn needs policy.distribution q")
        self._heads = policy.heads
        if workers.size > 1 and replay is None:
            raise ConfigError(
                f"navi train dqn runs in one process, not {workers.size}; start it without torchrun, or navi train apex"
            )
        if workers.size > 1 and config.kernel_smoothing.enabled:
            raise ConfigError("kernel_smoothing looks for neighbours in whole minibatches; it needs a single learner")
        self.workers = workers
        self.policy, self.shaper, self.config, self.device = policy, shaper, config, device
        dqn, settings = config.dqn, config.replay
        self.target = copy.deepcopy(policy).requires_grad_(False)
        named = [(name, p) for name, p in policy.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in named]
        self.parameters: list[Tensor] = [p for _, p in named]
        self._followers: list[Tensor] = [*self.target.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=dqn.learning_rate, eps=1e-5, fused=True)
        per_item = config.decisions_of_an_item
        self._own: PrioritizedReplay | None = None
        if replay is None:
            self._own = replay = PrioritizedReplay(
                settings.items(per_item),
                settings.alpha if settings.prioritized_replay else 0.0,
                settings.beta0,
                config.seed,
                device=device,
            )
        self.replay: Replay = replay
        self._per_item = per_item
        self._items_of_a_batch = max(1, round(settings.batch_size / per_item))
        self._batches: TransitionBatches | SequenceBatches | None = None
        self._restored: dict[str, Any] = {}
        self.gradient_steps = 0
        self._owed = 0.0
        self._added_before = 0
        smoothing = config.kernel_smoothing
        self.smoothing = QSmoothing(smoothing, config.seed) if smoothing.enabled else None
        self._td_var: float | None = None
        self._rate_factor = 1.0
        self._last: QBatch | None = None
        self._updated: list[Tensor] = []
        self.events = EventBus()
        self._explore(0)

    def update(self, rollout: Rollout, *, index: int, steps: int) -> UpdateStats:
        """Add a rollout to the replay buffer and take the gradient steps that the replay ratio requires for it.

        Args:
            rollout: Rollout of the collector, which keeps the final observations of truncated episodes.
            index: Number of this update.
            steps: Decisions before this rollout.

        Raises:
            NonFiniteError: A loss, a gradient or a weight became NaN or infinite; it is named.
        """
        assert self._own is not None
        timer = stage_timer(self.device, self.config.profile)
        with timer("replay_add"):
            actions = table_index(rollout.actions, self._heads.table)
            items = self.read_as(rollout.observations.codec).items(rollout, actions)
            if items:
                before, places = len(self._own), self._own.add(items)
                self._announce(steps + rollout.steps * rollout.rows, "added", before, [places])
        return self.learn(rollout.steps * rollout.rows, index=index, steps=steps, timer=timer)

    def read_as(self, codec: ObservationCodec) -> TransitionBatches | SequenceBatches:
        """Return the converter between rollouts, replay items and minibatches, for observations packed by `codec`."""
        if self._batches is None:
            self._batches = make_batches(self.config, codec, self.policy)
            self._batches.load_state_dict(self._restored)
        return self._batches

    def learn(self, decisions: int, *, index: int, steps: int, timer: StageTimer | None = None) -> UpdateStats:
        """Take the gradient steps that the replay ratio requires for decisions already in the replay buffer.

        Args:
            decisions: Number of new decisions.
            index: Number of this update.
            steps: Decisions before them.
            timer: Stage timer to continue; None starts a new one.

        Raises:
            NonFiniteError: A loss, a gradient or a weight became NaN or infinite; it is named.
        """
        dqn, start = self.config.dqn, time.perf_counter()
        timer = timer if timer is not None else stage_timer(self.device, self.config.profile)
        if not self.gradient_steps:
            # A run may start from another run's weights; the target network must equal them.
            self._copy_target()
        after = steps + decisions
        replay, total = self.config.replay, self.config.total_steps
        self.replay.anneal(after / (replay.beta_steps or total or 100 * replay.capacity))
        rate = self._rate_factor * scheduled(self.config, "learning_rate", steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        rows: list[Tensor] = []
        if len(self.replay) * self._per_item >= dqn.learning_starts:
            # Counted from the first rollout after `learning_starts`.
            self._owed += decisions * dqn.replay_ratio / (self._items_of_a_batch * self._per_item)
            while self._owed >= 1.0:
                self._owed -= 1.0
                rows.append(self._gradient_step(timer, after))
        self._explore(after)
        self._announce(after, "priorities", len(self.replay), self._updated)
        self._updated = []
        with timer("statistics"):
            metrics = self._metrics(rows, index)
            self._td_var = metrics.get("td_var", self._td_var)
            if self._last is not None:
                # Once: an update without a gradient step has no minibatch, resumed or not.
                metrics["local_structure"] = batch_structure(self._last)
                self._last = None
            if self.smoothing is not None:
                metrics |= self.smoothing.figures()
        metrics |= {
            "learning_rate": rate,
            "epsilon": float(self._heads.epsilon.mean()),
            "priority_beta": self.replay.beta,
            "replay_size": float(len(self.replay) * self._per_item),
            "gradient_steps": float(self.gradient_steps),
        }
        return UpdateStats(metrics=metrics, seconds=time.perf_counter() - start, epochs=1, timer=timer)

    def _gradient_step(self, timer: StageTimer, steps: int) -> Tensor:
        """Take one gradient step on a sampled minibatch after `steps` decisions; return its statistics (6,)."""
        dqn, batches = self.config.dqn, self._batches
        assert batches is not None
        with timer("minibatch_fetch"):
            items, places, weights = self.replay.sample(self._items_of_a_batch)
        with timer("policy_evaluation"):
            batch = batches.evaluate(items, self.policy, self.target)
        penalty: Tensor | None = None
        if self.smoothing is not None:
            with timer("smoothing"):
                batch, penalty = self.smoothing(batch, self._heads, weights, steps, self._td_var, self.gradient_steps)
        self._last = batch
        with timer("loss"):
            error = batch.target - batch.q
            loss = torch.nn.functional.huber_loss(batch.q, batch.target, reduction="none", delta=dqn.huber)
            count, share = (batch.count, 1.0) if self.workers.size == 1 else self._among_all(batch)
            loss = (loss * weights.view(-1, *[1] * (loss.ndim - 1)) * batch.valid).sum() / count
            if penalty is not None:
                loss = loss + penalty
        with timer("backward"):
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
        with timer("rnd_step"):
            self.shaper.learn(batch.embedding.detach(), share)
            self.shaper.step(None if self.workers.size == 1 else self.workers.sum)
        with timer("statistics"), torch.no_grad():
            error = error.detach()
            parts = torch.stack((error, error.square(), batch.q.detach(), batch.target)) * batch.valid
            figures = torch.cat((loss.detach()[None], parts.flatten(1).sum(1) / count))
        with timer("gradient_clip"):
            if self.workers.size > 1:
                for p in self.parameters:
                    p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                self.workers.sum(figures, *(p.grad for p in self.parameters if p.grad is not None))
            norm, _ = clip_gradients(self.parameters, dqn.max_grad_norm)
        with timer("optimizer_step"):
            self.optimizer.step()
            self.gradient_steps += 1
            self._follow()
        with timer("replay_update"), torch.no_grad():
            if self.replay.alpha:
                errors = batches.errors(error, batch.valid) + self.config.replay.priority_floor
                # Priorities live on the host. The loss crosses with them: all learners share it, so that all stop.
                crossed = torch.cat((errors, figures[:1])).cpu()
                if not bool(crossed.isfinite().all()):
                    raise _diverged("q_loss", float(crossed[-1]), f"gradient step {self.gradient_steps}")
                self.replay.update(places, crossed[:-1])
                if self._own is not None:
                    self._updated.append(places)
        spread = (figures[2] - figures[1].square()).clamp_min(0.0)
        return torch.stack((*figures[:2], spread, *figures[3:], norm))

    def _among_all(self, batch: QBatch) -> tuple[Tensor, float]:
        """All-reduce a minibatch's loss denominator; return it and this process's fraction of the decisions."""
        mine = float(batch.valid.numel())
        sums = torch.stack((batch.valid.sum(), batch.valid.new_tensor(mine)))
        self.workers.sum(sums)
        return sums[0].clamp_min(1.0), mine / float(sums[1])

    def _announce(self, step: int, change: str, before: int, places: list[Tensor]) -> None:
        """Publish the items of this process's replay buffer that were added or got other priorities."""
        if self._own is not None and places and self.events.wanted:
            weights = self._own.priorities(torch.cat(places)).numpy()
            stats = {"min": float(weights.min()), "mean": float(weights.mean()), "max": float(weights.max())}
            count, after = len(weights), len(self._own)
            self.events.publish(ReplayUpdate(self.events.subject, step, 0, change, count, before, after, stats))

    def settings_now(self) -> AGMConfig:
        """Return the current values of the settings that adaptation may change."""
        smoothing = self.config.kernel_smoothing if self.smoothing is None else self.smoothing.smoother.config
        rate = self.config.dqn.learning_rate * self._rate_factor
        return AGMConfig(smoothing.alpha_step_init, smoothing.trust_region_tau, smoothing.k, rate)

    def adopt(self, settings: AGMConfig) -> None:
        """Apply adapted settings; the learning-rate schedule is scaled."""
        self._rate_factor = settings.learning_rate / self.config.dqn.learning_rate
        if self.smoothing is not None:
            changed = {
                "alpha_step_init": settings.alpha_step,
                "trust_region_tau": settings.trust_region_tau,
                "k": settings.k,
            }
            self.smoothing.smoother.config = self.smoothing.smoother.config.model_copy(update=changed)

    def _explore(self, steps: int) -> None:
        self._heads.epsilon = epsilons(self.config.dqn, self.config.actors, steps).to(self.device)

    @torch.no_grad()
    def _follow(self) -> None:
        """Update the target network: Polyak averaging, or a periodic copy of the online network.

        Without autograd: otherwise the target would join the graph of the online weights, which grows by a node per
        gradient step, and would compute with other kernels than a target loaded from a checkpoint.
        """
        dqn = self.config.dqn
        if dqn.target_update == "polyak":
            torch._foreach_lerp_(self._followers, self.parameters, dqn.polyak)
        elif self.gradient_steps % dqn.target_period == 0:
            self._copy_target()

    @torch.no_grad()
    def _copy_target(self) -> None:
        torch._foreach_copy_(self._followers, self.parameters)

    def _metrics(self, rows: list[Tensor], index: int) -> dict[str, float]:
        if not rows:
            return {}
        table = torch.stack(rows)
        weights = torch.stack([p.detach().abs().sum() for p in self.parameters])
        packed = torch.cat((table.mean(0), weights)).tolist()  # the update's one crossing to the host
        for name, value in zip((*_FIGURES, *(f"weight {name}" for name in self.names)), packed):
            if not math.isfinite(value):
                raise _diverged(name, value, f"update {index}")
        return dict(zip(_FIGURES, packed))

    def state_dict(self) -> dict[str, Any]:
        """Return the learner's state besides the policy's weights, the optimiser's state and the replay's items."""
        return {
            "target": dict(self.target.state_dict()),
            "epsilon": self._heads.epsilon.clone(),
            "gradient_steps": self.gradient_steps,
            "owed": self._owed,
            "td_var": self._td_var,
            "settings": [*map(float, list(self.settings_now().as_dict().values())[2:])],
            "remembered": self.replay.added,
            "batches": self._batches.state_dict() if self._batches is not None else self._restored,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore target network, exploration rate, counters and adapted settings from a `state_dict`."""
        self.target.load_state_dict(state["target"])
        self._heads.epsilon = state["epsilon"].to(self.device)
        self.gradient_steps, self._owed = int(state["gradient_steps"]), float(state["owed"])
        self._added_before = int(state["remembered"])
        self._td_var = state["td_var"]
        alpha_step, tau, k, rate = state["settings"]
        self.adopt(AGMConfig(alpha_step, tau, int(k), rate))
        self._batches, self._restored = None, dict(state["batches"])

    def save_beside(self, checkpoint: Path) -> None:
        """Write the replay file beside the checkpoint that is about to be written, and prune old ones."""
        assert self._own is not None
        save_replay(self._own, checkpoint)
        prune_replays(checkpoint.parent)

    def load_beside(self, checkpoint: Path) -> None:
        """Load the replay file of a checkpoint; without one begin with an empty replay and a warning."""
        assert self._own is not None
        load_replay(self._own, checkpoint, self._added_before)


def _diverged(name: str, value: float, where: str) -> NonFiniteError:
    return NonFiniteError(name, f"{name} is {value} in {where}. A lower dqn.learning_rate may help")


def batch_structure(batch: QBatch) -> float:
    """Compute a minibatch's local structure: fraction of k-NN latent pairs with similar targets; 1 without any."""
    valid = batch.valid.flatten() > 0
    latents = batch.latents.detach().flatten(0, -2)[valid][:_NEIGHBOURHOOD]
    if len(latents) < 2:
        return 1.0
    kernel = compute_knn_kernel(latents, SmoothingConfig())
    return local_structure(kernel, batch.target.flatten()[valid][:_NEIGHBOURHOOD])
