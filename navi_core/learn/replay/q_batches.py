"""Minibatches of the replay: Q values of the taken actions, and their targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from navi_core.config import TrainConfig
from navi_core.learn.estimators.losses import double_dqn_targets, n_step_returns
from navi_core.learn.replay.transitions import Items, SequenceItems, Tail, TransitionItems
from navi_core.learn.rollout.observation_store import ObservationCodec
from navi_core.learn.rollout.storage import Rollout
from navi_core.policy import NavigationPolicy
from navi_core.policy.heads import QHead


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
    """Minibatches of single transitions.

    Args:
        config: The run's configuration.
        codec: How observations are kept.
        aux: Whether the policy reads auxiliary inputs.
    """

    def __init__(self, config: TrainConfig, codec: ObservationCodec, *, aux: bool) -> None:
        self._items = TransitionItems(codec, config.dqn.gamma, config.dqn.n_step, aux)

    def items(self, rollout: Rollout, actions: Tensor) -> Items:
        """Return what the replay keeps of a rollout with the choices (T, B)."""
        return self._items.of(rollout, actions)

    def evaluate(self, items: Items, policy: NavigationPolicy, target: NavigationPolicy) -> QBatch:
        """Return values and targets of items."""
        obs, after = self._items.observations(items, "obs"), self._items.observations(items, "next")
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


class SequenceBatches:
    """Minibatches of sequences with the state at their start.

    Args:
        config: The run's configuration.
        codec: How observations are kept.
    """

    def __init__(self, config: TrainConfig, codec: ObservationCodec) -> None:
        dqn = config.dqn
        self._items = SequenceItems(codec, dqn.bptt, dqn.burn_in)
        self._gamma, self._n, self._burn_in = dqn.gamma, dqn.n_step, dqn.burn_in
        self._share = config.replay.sequence_max_share
        self._tail: Tail | None = None

    def items(self, rollout: Rollout, actions: Tensor) -> Items:
        """Return what the replay keeps of a rollout with the choices (T, B); it may be nothing."""
        items, self._tail = self._items.of(rollout, actions, self._tail)
        return items

    def evaluate(self, items: Items, policy: NavigationPolicy, target: NavigationPolicy) -> QBatch:
        """Return values and targets of items; the burn-in brings both networks' states up to date."""
        obs, aux, reset = self._items.observations(items), items["aux"], items["reset"]
        burn, learned = slice(0, self._burn_in), slice(self._burn_in, None)
        states = []
        with torch.no_grad():
            for net in (policy, target):
                state = self._items.states(items)
                if self._burn_in:
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
        returns, last, discount = n_step_returns(reward, terminated, before, gamma=self._gamma, n=self._n)
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
        return {} if self._tail is None else {"parts": dict(self._tail.parts), "states": list(self._tail.states)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self._tail = Tail(dict(state["parts"]), list(state["states"])) if state else None
