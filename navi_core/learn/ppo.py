"""Proximal policy optimisation (Schulman et al. 2017) on recurrent sequences.

The losses are plain functions; `PPOLearner.update` walks shuffled sequences for some epochs.
Before the first gradient step of every update the new policy is compared with the acting one:
`parity_ratio` and `parity_value` must vanish, or the update would learn from another policy's data.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from navi_core.config import TrainConfig
from navi_core.errors import ConfigError, NonFiniteError
from navi_core.learn.noise import shuffled
from navi_core.learn.rollout import Minibatch, Rollout
from navi_core.learn.value_scale import ValueScale
from navi_core.record import StageTimer

__all__ = ["PPOLearner", "UpdateStats", "explained_variance", "policy_loss", "value_loss"]


def policy_loss(log_ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Clipped surrogate loss, −mean(min(ρA, clip(ρ, 1−ε, 1+ε)A)).

    Args:
        log_ratio: log π_new − log π_old, any shape.
        advantages: Same shape.
        clip: ε.
    """
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip, 1.0 + clip) * advantages).mean()


def value_loss(values: Tensor, returns: Tensor, old_values: Tensor, clip: float | None) -> Tensor:
    """Mean squared error of the values; with `clip`, the larger of the plain and the clipped step's error.

    Args:
        values: Predicted now, any shape.
        returns: Targets.
        old_values: Predicted by the acting policy.
        clip: Largest step from `old_values` that may lower the loss; None switches it off.
    """
    error = (values - returns).square()
    if clip is not None:
        stepped = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (stepped - returns).square())
    return error.mean()


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """1 − Var(returns − values) / Var(returns); 0 where the returns do not vary."""
    variance = returns.var(correction=0)
    share = 1.0 - (returns - values).var(correction=0) / variance.clamp_min(1e-12)
    return torch.where(variance > 1e-12, share, torch.zeros_like(share))


@dataclass
class UpdateStats:
    """What an update did.

    Attributes:
        metrics: Losses and diagnostics by metric name.
        seconds: Wall time [s].
        epochs: Passes that were made; fewer than configured after a KL stop.
        timer: Stage timings.
    """

    metrics: dict[str, float]
    seconds: float
    epochs: int
    timer: StageTimer = field(repr=False)


_COLUMNS = (
    "policy_loss",
    "value_loss",
    "entropy",
    "total_loss",
    "rnd_loss",
    "grad_norm",
    "approx_kl",
    "clip_fraction",
    "parity_ratio",
    "parity_value",
)


class PPOLearner:
    """Turns rollouts into weights.

    Args:
        policy: `NavigationPolicy`.
        shaper: `RewardShaper`; its RND predictor, if it has one, is trained on the update's embeddings.
        config: The run's configuration.
        device: Training device.

    Raises:
        ConfigError: A learning-rate schedule is asked for without `total_steps`.
    """

    def __init__(self, policy: Any, shaper: Any, config: TrainConfig, device: torch.device) -> None:
        self.policy, self.shaper, self.config, self.device = policy, shaper, config, device
        if config.ppo.final_learning_rate is not None and config.total_steps is None:
            raise ConfigError("ppo.final_learning_rate is a target at total_steps; set total_steps (or --steps) too")
        self.parameters = [p for p in policy.parameters() if p.requires_grad]
        self.scale = ValueScale(policy.heads.critic[-1], device)
        self.optimizer = torch.optim.Adam(self.parameters, lr=config.ppo.learning_rate, eps=1e-5, fused=True)

    def learning_rate(self, steps: int) -> float:
        """Step size after `steps` decisions: constant, or a cosine to `final_learning_rate`."""
        ppo = self.config.ppo
        if ppo.final_learning_rate is None or self.config.total_steps is None:
            return ppo.learning_rate
        share = min(1.0, steps / self.config.total_steps)
        return ppo.final_learning_rate + 0.5 * (ppo.learning_rate - ppo.final_learning_rate) * (
            1.0 + math.cos(math.pi * share)
        )

    def update(self, rollout: Rollout, *, index: int, steps: int) -> UpdateStats:
        """Improve the policy on one rollout.

        Args:
            rollout: Filled by the collector.
            index: Number of this update; part of the shuffle's seed.
            steps: Decisions before this rollout; sets the learning rate.

        Raises:
            NonFiniteError: A loss, the gradient or a weight became NaN or infinite.
        """
        ppo, timer, start = self.config.ppo, StageTimer(), time.perf_counter()
        with timer("advantages"):
            explained = self._prepare(rollout)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(steps)
        rows: list[Tensor] = []
        epochs = 0
        parts = math.ceil(rollout.sequences / min(ppo.minibatch, rollout.sequences))
        for epoch in range(ppo.epochs):
            first = len(rows)
            order = shuffled(self.config.seed, rollout.sequences, index, epoch, device=self.device)
            for part in torch.tensor_split(order, parts):
                with timer("minibatch_fetch"):
                    batch = rollout.minibatch(part)
                rows.append(self._step(batch, timer))
            epochs += 1
            # The stop is asked between epochs only: the first epoch always runs, parity comes before it.
            if ppo.target_kl is not None and epoch + 1 < ppo.epochs:
                kl = torch.stack(rows[first:])[:, _COLUMNS.index("approx_kl")].mean()
                if float(kl) > ppo.target_kl:
                    break
        with timer("statistics"):
            metrics = self._metrics(rows, explained, index)
        metrics["learning_rate"] = self.learning_rate(steps)
        metrics["epochs"] = float(epochs)
        return UpdateStats(metrics=metrics, seconds=time.perf_counter() - start, epochs=epochs, timer=timer)

    def _prepare(self, rollout: Rollout) -> Tensor:
        """Estimate advantages in raw units, then bring values, returns and advantages to unit scale."""
        ppo = self.config.ppo
        rollout.values.copy_(self.scale.to_raw(rollout.values))
        rollout.bootstrap_values.copy_(self.scale.to_raw(rollout.bootstrap_values))
        rollout.estimate_advantages(gamma=ppo.gamma, lam=ppo.gae_lambda)
        explained = explained_variance(rollout.values, rollout.returns)
        self.scale.follow(rollout.returns)
        rollout.values.copy_(self.scale.to_scaled(rollout.values))
        rollout.returns.copy_(self.scale.to_scaled(rollout.returns))
        rollout.normalise_advantages()
        return explained

    def _step(self, batch: Minibatch, timer: StageTimer) -> Tensor:
        ppo = self.config.ppo
        with timer("policy_evaluation"):
            out = self.policy.evaluate(batch.obs, batch.aux, batch.state, batch.reset, batch.actions)
        with timer("loss"):
            log_ratio = out.log_prob - batch.log_probs
            actor = policy_loss(log_ratio, batch.advantages, ppo.clip)
            critic = value_loss(out.value, batch.returns, batch.values, ppo.value_clip)
            entropy = out.entropy.mean()
            total = actor + ppo.value_coefficient * critic - ppo.entropy_coefficient * entropy
        with timer("backward"):
            self.optimizer.zero_grad(set_to_none=True)
            total.backward()
        with timer("gradient_clip"):
            norm = torch.nn.utils.clip_grad_norm_(self.parameters, ppo.max_grad_norm)
        with timer("optimizer_step"):
            self.optimizer.step()
        with timer("rnd_step"):
            curiosity = self.shaper.update(out.embedding.detach())
        with timer("statistics"), torch.no_grad():
            log_ratio = log_ratio.detach()
            ratio = log_ratio.exp()
            return torch.stack(
                (
                    actor.detach(),
                    critic.detach(),
                    entropy.detach(),
                    total.detach(),
                    curiosity,
                    norm.detach(),
                    (ratio - 1.0 - log_ratio).mean(),  # Schulman's low-variance estimator of KL(old‖new)
                    ((ratio - 1.0).abs() > ppo.clip).float().mean(),
                    (ratio - 1.0).abs().max(),
                    (out.value.detach() - batch.values).abs().max(),
                )
            )

    def _metrics(self, rows: list[Tensor], explained: Tensor, index: int) -> dict[str, float]:
        weights = torch.stack([p.detach().abs().sum() for p in self.parameters]).sum()
        # Everything the update has to say crosses to the host here, at once.
        packed = torch.cat((torch.stack(rows).flatten(), explained[None], weights[None])).tolist()
        width = len(_COLUMNS)
        table = [packed[i : i + width] for i in range(0, len(rows) * width, width)]
        for number, row in enumerate(table):
            for name, value in zip(_COLUMNS, row):
                if not math.isfinite(value):
                    raise NonFiniteError(
                        name,
                        f"{name} is {value} in minibatch {number} of update {index}; the last good checkpoint is kept. "
                        "A lower ppo.learning_rate or ppo.max_grad_norm may help",
                    )
        if not math.isfinite(packed[-1]):
            name = next(n for n, p in self.policy.named_parameters() if not torch.isfinite(p).all())
            raise NonFiniteError(name, f"weight {name} is not finite after update {index}")
        metrics = {name: sum(row[i] for row in table) / len(table) for i, name in enumerate(_COLUMNS[:-2])}
        metrics["parity_ratio"], metrics["parity_value"] = table[0][-2:]
        metrics["explained_variance"] = packed[-2]
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return state besides the policy's weights and the optimiser's: the scale of the returns."""
        return {"value_scale": self.scale.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self.scale.load_state_dict(state["value_scale"])
