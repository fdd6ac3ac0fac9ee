"""Q-learning batches: converts rollouts to replay items (transitions or sequences), and items to minibatches.

A transition is self-contained: observation, action, n-step return, bootstrap observation, and discount. A sequence
holds consecutive decisions, one observation more, and the recurrent state at its start. Its targets are computed when
it is sampled, from states warmed up by a burn-in (R2D2, Kapturowski et al. 2019). A decision that truncates its episode
inside a sequence has no next observation stored. It is masked out of the loss, and earlier decisions bootstrap at the
latest from the observation before it. A single transition keeps that observation.
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
    """Return the next observation and auxiliary input (T, B, …) of every decision, before any reset."""
    # Not `empty_like`: `obs` may have other strides, and the writes below need a flat view.
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
    """Evaluated Q-learning minibatch: (N,) transitions, or (S, L) decisions of sequences.

    Attributes:
        q: Q values of the actions that were taken, with gradient.
        target: Temporal-difference targets of these actions.
        valid: 1 where a decision is learned from, else 0; same type as `q`.
        count: Sum of `valid`, at least 1.
        values: Values of all choices (…, K), with gradient.
        latents: Hidden activations (…, H) of the Q head, with gradient.
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
    """Build the rollout-to-replay converter: `SequenceBatches` for a recurrent policy, else `TransitionBatches`.

    Args:
        config: The run's configuration; `replay.storage` is the format of observations.
        codec: Codec of the rollouts' observations.
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
    """Converter for memoryless policies: rollouts to replay items of single transitions, items to minibatches.

    Args:
        config: The run's configuration.
        codec: Codec of the stored observations.
        aux: Whether the policy reads auxiliary inputs.
    """

    def __init__(self, config: TrainConfig, codec: ObservationCodec, *, aux: bool) -> None:
        self._dqn, self._codec, self._aux = config.dqn, codec, aux

    def items(self, rollout: Rollout, actions: Tensor) -> Items:
        """Convert a rollout to its T·B n-step transitions, with the action indices `actions` (T, B) int64."""
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
        """Compute Q values and Double DQN targets of sampled transitions."""
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
        """Return the |temporal-difference error| of every item (N,), its new priority."""
        return error.abs()

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: transitions need nothing of earlier rollouts."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore nothing: transitions have no state."""


@dataclass
class Tail:
    """Burn-in context: last `burn_in` decisions of a rollout, prepended to the next rollout's first sequences."""

    parts: dict[str, Tensor]
    """Tensors (burn_in, B, …) by name."""
    states: list[Tensor]
    """Recurrent states (chunks, B, …) at the starts of these decisions' chunks."""


class SequenceBatches:
    """Converter for recurrent policies: rollouts to sequences of `burn_in` + `bptt` decisions, items to minibatches.

    Args:
        config: The run's configuration.
        codec: Codec of the stored observations.
    """

    def __init__(self, config: TrainConfig, codec: ObservationCodec) -> None:
        self._dqn, self._codec, self._share = config.dqn, codec, config.replay.sequence_max_share
        self._tail: Tail | None = None

    def items(self, rollout: Rollout, actions: Tensor) -> Items:
        """Convert a rollout to sequences with the action indices `actions` (T, B) int64; the result may be empty.

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
        """Compute Q values and Double DQN targets of sampled sequences, after a burn-in of both networks' states."""
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
        # An n-step window ends before a truncating decision, whose next observation is not stored.
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
        # The target of a masked decision would belong to another episode, so it is replaced.
        goal = torch.where(valid > 0, goal, q.detach())
        count = valid.sum().clamp_min(1.0)
        return QBatch(q, goal, valid, count, values[:, :-1], latents[:, :-1], action, embedding[:, :-1])

    def errors(self, error: Tensor, valid: Tensor) -> Tensor:
        """Return the priority of every item (S,): a mixture of its largest and mean |temporal-difference error|."""
        size = error.abs() * valid
        mean = size.sum(1) / valid.sum(1).clamp_min(1.0)
        return self._share * size.amax(1) + (1.0 - self._share) * mean

    def state_dict(self) -> dict[str, Any]:
        """Return the tail of the last rollout: its last decisions and recurrent states."""
        return {} if self._tail is None else dict(vars(self._tail))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the tail of the last rollout from a `state_dict`."""
        self._tail = Tail(dict(state["parts"]), list(state["states"])) if state else None


class QSmoothing:
    """Drift smoothing of Q-learning minibatches (targets, latents or Q values), with statistics of its effect.

    Args:
        config: Settings of the smoothing.
        seed: Seed of the noise.
    """

    def __init__(self, config: SmoothingConfig, seed: int) -> None:
        self.smoother = DriftSmoother(config, seed)
        self._decisions: list[SmoothingDecision] = []

    def __call__(
        self, batch: QBatch, heads: QHead, weights: Tensor, step: int, td_var: float | None, draw: int
    ) -> tuple[QBatch, Tensor | None]:
        """Apply drift smoothing to one minibatch.

        Args:
            batch: Decisions.
            heads: The Q head.
            weights: (N,) importance weights of the items.
            step: Decisions so far.
            td_var: Variance of the previous minibatch's temporal differences, for the gate; None for the first.
            draw: Number of the minibatch, part of the noise seed.

        Returns:
            The smoothed minibatch, and a penalty to add to the loss, or None.
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
        """Return metrics of the smoothing since the last call: fractions and means; empty if it was never applied."""
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
