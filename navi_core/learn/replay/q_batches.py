"""Items of the replay, minibatches of them and their smoothing: transitions, or sequences with a state at their start.

A transition stands alone: observation, action, n-step return, the observation it bootstraps from, and its discount.
A sequence holds its decisions in order and one observation more, so that every target can be computed when it is drawn,
from states that have seen what came before (Kapturowski et al. 2019). Of a decision that truncates its episode inside a
sequence the following observation is not kept: it is not learned from, and those before it bootstrap no further than
the observation before the cut. A single transition keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from navi_core.config import SmoothingConfig, TrainConfig
from navi_core.learn.estimators.drift_smoother import DriftSmoother, free_energy
from navi_core.learn.estimators.losses import double_dqn_targets, n_step_returns
from navi_core.learn.events import SmoothingDecision
from navi_core.learn.rollout.storage import ObservationCodec, Rollout
from navi_core.policy import NavigationPolicy
from navi_core.policy.heads import QHead

Items = dict[str, Tensor]


def _following(rollout: Rollout, obs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the observation and the auxiliary input (T, B, …) after every decision, before any reset."""
    # Not like `obs`, whose strides may be others: what is written below goes through a flat view.
    after, after_aux = obs.new_empty(obs.shape), rollout.aux.new_empty(rollout.aux.shape)
    after[:-1], after_aux[:-1] = obs[1:], rollout.aux[1:]
    for slot, seen, aux in rollout.terminal.kept:
        after.view(-1, *obs.shape[2:]).index_copy_(0, slot, seen)
        after_aux.view(-1, *rollout.aux.shape[2:]).index_copy_(0, slot, aux)
    return after, after_aux


def _named(name: str, parts: Iterable[Tensor]) -> Items:
    return {f"{name}.{i}": part for i, part in enumerate(parts)}


def _numbered(items: Items, name: str) -> list[Tensor]:
    count = sum(key.startswith(name + ".") for key in items)
    return [items[f"{name}.{i}"] for i in range(count)]


@dataclass(frozen=True)
class QBatch:
    """Decisions of a minibatch: (N,) transitions, or (S, L) of sequences.

    Attributes:
        q: Values of the actions that were taken, with gradient.
        target: Their targets.
        valid: 1 where a decision is learned from, else 0; same type as `q`.
        count: Sum of `valid`, at least 1.
        values: Values of all choices (…, K), with gradient.
        latents: Activations (…, H) that the values were read from, with gradient.
        action: Choices that were taken, int64.
        embedding: Encoder outputs (…, D).
    """

    q: Tensor
    target: Tensor
    valid: Tensor
    count: Tensor
    values: Tensor
    latents: Tensor
    action: Tensor
    embedding: Tensor


def make_batches(
    config: TrainConfig, codec: ObservationCodec, policy: NavigationPolicy
) -> TransitionBatches | SequenceBatches:
    """Build the converter of rollouts into items and of items into minibatches: transitions, or sequences with a core.

    Args:
        config: The run's configuration; `replay.storage` is the format of observations.
        codec: How rollouts keep them.
        policy: The network.

    Raises:
        ConfigError: `replay.storage` is compact and the observations are no panoramas.
    """
    kind = config.replay.storage
    if kind == "auto":
        # A task's pictures are bytes already.
        panorama = len(codec.shape) == 3 and (codec.kind == "compact" or codec.parts[0][1] == torch.float32)
        kind = "compact" if panorama else "full"
    if kind != codec.kind:
        codec = ObservationCodec(codec.shape, kind=kind)
    if policy.initial_state(1):
        return SequenceBatches(config, codec)
    return TransitionBatches(config, codec, aux=policy.aux is not None)


class TransitionBatches:
    """Single transitions, for policies without memory: items of rollouts, and minibatches of them.

    Args:
        config: The run's configuration.
        codec: How observations are kept.
        aux: Whether the policy reads auxiliary inputs.
    """

    def __init__(self, config: TrainConfig, codec: ObservationCodec, *, aux: bool) -> None:
        self._dqn, self._codec, self._aux = config.dqn, codec, aux

    def items(self, rollout: Rollout, actions: Tensor) -> Items:
        """Return the T·B transitions of a rollout with the choices `actions` (T, B) int64."""
        returns, last, discount = n_step_returns(
            rollout.rewards, rollout.terminated, rollout.truncated, gamma=self._dqn.gamma, n=self._dqn.n_step
        )
        rows = torch.arange(rollout.rows, device=last.device)
        following = (last * rollout.rows + rows).flatten()
        obs = rollout.observations.by_step()
        after, after_aux = _following(rollout, obs)
        items = _named("obs", self._codec.pack(obs.flatten(0, 1)))
        items |= _named("next", self._codec.pack(after.flatten(0, 1).index_select(0, following)))
        if self._aux:
            items["aux"] = rollout.aux.flatten(0, 1).clone()
            items["next_aux"] = after_aux.flatten(0, 1).index_select(0, following)
        return items | {"action": actions.flatten(), "return": returns.flatten(), "discount": discount.flatten()}

    def evaluate(self, items: Items, policy: NavigationPolicy, target: NavigationPolicy) -> QBatch:
        """Return values and targets of items."""
        obs, after = (self._codec.unpack(_numbered(items, name)) for name in ("obs", "next"))
        embedding, features, _ = policy.step(obs, items.get("aux", obs), (), None)
        heads = policy.heads
        assert isinstance(heads, QHead)
        latents = heads.latents(features)
        values = heads.values_of(latents)
        with torch.no_grad():
            after_aux = items.get("next_aux", after)
            online, followed = (net.heads(net.step(after, after_aux, (), None)[1]) for net in (policy, target))
            discount = items["discount"]
            goal = double_dqn_targets(online, followed, items["return"], discount == 0, discount)
        q = values.gather(-1, items["action"][:, None]).squeeze(-1)
        valid = torch.ones_like(q)
        count = valid.new_tensor(float(len(q)))
        return QBatch(q, goal, valid, count, values, latents, items["action"], embedding)

    @staticmethod
    def errors(error: Tensor, _valid: Tensor) -> Tensor:
        """Return |temporal difference| of every item (N,)."""
        return error.abs()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: transitions stand alone."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""


@dataclass
class Tail:
    """The last decisions of a rollout, with which the next one's first sequences begin."""

    parts: dict[str, Tensor]
    """Tensors (burn_in, B, …) by name."""
    states: list[Tensor]
    """States (chunks, B, …) at the starts of these decisions' chunks."""


class SequenceBatches:
    """Sequences of `burn_in` + `bptt` decisions with the state at their start: items, and minibatches of them.

    Args:
        config: The run's configuration.
        codec: How observations are kept.
    """

    def __init__(self, config: TrainConfig, codec: ObservationCodec) -> None:
        self._dqn, self._codec, self._share = config.dqn, codec, config.replay.sequence_max_share
        self._tail: Tail | None = None

    def items(self, rollout: Rollout, actions: Tensor) -> Items:
        """Return the sequences of a rollout with the choices `actions` (T, B) int64; it may be none.

        The first sequences begin with the tail of the rollout before. Those of the first rollout would lack their
        burn-in and are left out.
        """
        bptt, burn_in, tail = self._dqn.bptt, self._dqn.burn_in, self._tail
        obs = rollout.observations.by_step()
        after, after_aux = _following(rollout, obs)
        parts = _named("obs", self._codec.pack(obs)) | {
            "aux": rollout.aux,
            "reset": rollout.reset,
            "action": actions,
            "reward": rollout.rewards,
            "terminated": rollout.terminated,
            "truncated": rollout.truncated,
        }
        states = list(rollout.chunk_state)
        if tail is not None:
            parts = {name: torch.cat((tail.parts[name], x)) for name, x in parts.items()}
            states = [torch.cat((kept, x)) for kept, x in zip(tail.states, states)]
        # One observation more than decisions: what followed the last one. It begins no episode, for at one's end it
        # is not looked at.
        more = _named("obs", self._codec.pack(after[-1:])) | {
            "aux": after_aux[-1:],
            "reset": torch.zeros_like(rollout.reset[-1:]),
        }
        whole = {name: torch.cat((x, more[name])) if name in more else x for name, x in parts.items()}
        length, steps = burn_in + bptt, parts["action"].shape[0]
        windows = range(0, steps - length + 1, bptt)
        if burn_in:
            kept = {name: x[-burn_in:].clone() for name, x in parts.items()}
            self._tail = Tail(kept, [x[-(burn_in // bptt) :].clone() for x in states])
        if not windows:
            return {}
        items = {
            name: torch.cat([x[start : start + length + (name in more)].transpose(0, 1) for start in windows])
            for name, x in whole.items()
        }
        return items | _named("state", [torch.cat([x[start // bptt] for start in windows]) for x in states])

    def evaluate(self, items: Items, policy: NavigationPolicy, target: NavigationPolicy) -> QBatch:
        """Return values and targets of items; the burn-in brings both networks' states up to date."""
        obs, aux, reset = self._codec.unpack(_numbered(items, "obs")), items["aux"], items["reset"]
        burn, learned = slice(0, self._dqn.burn_in), slice(self._dqn.burn_in, None)
        states = []
        with torch.no_grad():
            for net in (policy, target):
                state = tuple(_numbered(items, "state"))
                if self._dqn.burn_in:
                    state = net.sequence(obs[:, burn], aux[:, burn], state, reset[:, burn])[2]
                states.append(state)
            obs, aux, reset = obs[:, learned], aux[:, learned], reset[:, learned]
            followed = target.heads(target.sequence(obs, aux, states[1], reset)[1])
        embedding, features, _ = policy.sequence(obs, aux, states[0], reset)
        heads = policy.heads
        assert isinstance(heads, QHead)
        latents = heads.latents(features)
        values = heads.values_of(latents)
        action = items["action"][:, learned]
        reward, terminated, truncated = (
            items[name][:, learned].transpose(0, 1) for name in ("reward", "terminated", "truncated")
        )
        cut = truncated & ~terminated
        # A window ends before a decision that truncates: what followed that one is not here.
        before = torch.zeros_like(cut)
        before[:-1] = cut[1:]
        returns, last, discount = n_step_returns(reward, terminated, before, gamma=self._dqn.gamma, n=self._dqn.n_step)
        online = values.detach().transpose(0, 1)
        following = (last + 1)[..., None].expand(-1, -1, values.shape[-1])
        goal = double_dqn_targets(
            online.gather(0, following), followed.transpose(0, 1).gather(0, following), returns, discount == 0, discount
        ).transpose(0, 1)
        q = values[:, :-1].gather(-1, action[..., None]).squeeze(-1)
        valid = (~cut).transpose(0, 1).to(q.dtype)
        # What an excluded decision would be drawn toward is another episode's; it must not even be looked at.
        goal = torch.where(valid > 0, goal, q.detach())
        count = valid.sum().clamp_min(1.0)
        return QBatch(q, goal, valid, count, values[:, :-1], latents[:, :-1], action, embedding[:, :-1])

    def errors(self, error: Tensor, valid: Tensor) -> Tensor:
        """Return of every item (S,) a mixture of its largest and its mean |temporal difference|."""
        size = error.abs() * valid
        mean = size.sum(1) / valid.sum(1).clamp_min(1.0)
        return self._share * size.amax(1) + (1.0 - self._share) * mean

    def state_dict(self) -> dict[str, Any]:
        """Return the tail of the last rollout."""
        return {} if self._tail is None else dict(vars(self._tail))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self._tail = Tail(dict(state["parts"]), list(state["states"])) if state else None


class QSmoothing:
    """Smooths targets, latents or Q of minibatches and counts its effects, so that a smoother without effect shows.

    Args:
        config: Settings.
        seed: Seed of the noise.
    """

    def __init__(self, config: SmoothingConfig, seed: int) -> None:
        self.smoother = DriftSmoother(config, seed)
        self._decisions: list[SmoothingDecision] = []

    def __call__(
        self, batch: QBatch, heads: QHead, weights: Tensor, step: int, td_var: float | None, draw: int
    ) -> tuple[QBatch, Tensor | None]:
        """Smooth one minibatch.

        Args:
            batch: Decisions.
            heads: The Q head.
            weights: (N,) importance weights of the items.
            step: Decisions so far.
            td_var: Variance of the temporal differences of the minibatch before, for the gate; None for the first.
            draw: Number of the minibatch, which the noise is drawn for.

        Returns:
            The minibatch with what is smoothed, and a penalty to add to the loss, or None.
        """
        config = self.smoother.config
        valid = batch.valid.flatten() > 0
        z = batch.latents.flatten(0, -2)[valid]
        importance = weights.view(-1, *[1] * (batch.q.ndim - 1)).expand(batch.q.shape).flatten()[valid]
        values = batch.values.flatten(0, -2)[valid]
        penalty: Tensor | None = None
        if config.apply_to == "td_targets":
            h = batch.target.flatten()[valid]
        else:
            h = z if config.apply_to == "latents" else values
        smoothed, decision = self.smoother(h, z, step, td_var=td_var, importance=importance, draw=draw)
        self._decisions.append(decision)
        if not decision.applied:
            return batch, None
        if config.apply_to == "td_targets":
            batch = replace(batch, target=batch.target.flatten().masked_scatter(valid, smoothed).view_as(batch.target))
        elif config.apply_to == "latents":
            latents = batch.latents.flatten(0, -2).masked_scatter(valid[:, None], smoothed).view_as(batch.latents)
            again = heads.values_of(latents)
            q = again.gather(-1, batch.action[..., None]).squeeze(-1)
            batch = replace(batch, latents=latents, values=again, q=q)
        else:
            penalty = config.regulariser_weight * 0.5 * (values - smoothed.detach()).square().sum() / batch.count
        if config.free_energy_weight:
            kernel = self.smoother.kernel
            assert kernel is not None
            moving = values if config.apply_to == "td_targets" else h
            energy = free_energy(moving, kernel.mean(moving.detach()), kernel.weight, config.temperature)
            term = config.free_energy_weight * energy / batch.count
            penalty = term if penalty is None else penalty + term
        return batch, penalty

    def figures(self) -> dict[str, float]:
        """Return fractions and means over the applications since the last call; empty if there was none."""
        made, self._decisions = self._decisions, []
        if not made:
            return {}
        applied = [d for d in made if d.applied]
        count = max(len(applied), 1)
        return {
            "smoothed_share": len(applied) / len(made),
            "smoothing_gated": sum(d.gated_by_uncertainty for d in made) / len(made),
            "smoothing_step": sum(d.mean_step for d in applied) / count,
            "smoothing_clipped": sum(d.tau_clip for d in applied) / count,
            "smoothing_disagreement": sum(d.disagreement for d in made) / len(made),
            "free_energy": sum(d.fep_value for d in applied) / count,
            "sigma_mean": sum(d.sigma_stats[1] for d in applied) / count,
            "alpha_step": applied[-1].alpha_step_used if applied else 0.0,
        }
