"""From rollouts to what a replay holds: single transitions, or sequences with the state at their start.

A transition stands alone: observation, action, n-step return, the observation it bootstraps from, and its discount.
A sequence holds its decisions in order and one observation more, so that every target can be computed when it is drawn,
from states that have seen what came before (Kapturowski et al. 2019). Of a decision that truncates its episode inside a
sequence the following observation is not kept: it is not learned from, and those before it bootstrap no further than
the observation before the cut. A single transition keeps it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from navi_core.learn.estimators.losses import n_step_returns
from navi_core.learn.rollout.observation_store import ObservationCodec
from navi_core.learn.rollout.storage import Rollout

Items = dict[str, Tensor]


class TransitionItems:
    """Single transitions, for policies without memory.

    Args:
        codec: How observations are kept.
        gamma: Discount.
        n: Rewards that are summed before the bootstrap.
        aux: Whether the policy reads auxiliary inputs.
    """

    def __init__(self, codec: ObservationCodec, gamma: float, n: int, aux: bool) -> None:
        self.codec, self.gamma, self.n, self.aux = codec, gamma, n, aux

    def of(self, rollout: Rollout, actions: Tensor) -> Items:
        """Return the T·B transitions of a rollout whose choices are `actions` (T, B) int64."""
        returns, last, discount = n_step_returns(
            rollout.rewards, rollout.terminated, rollout.truncated, gamma=self.gamma, n=self.n
        )
        rows = torch.arange(rollout.rows, device=last.device)
        following = (last * rollout.rows + rows).flatten()
        obs = rollout.observations.by_step()
        after, after_aux = _following(rollout, obs)
        items = _named("obs", self.codec.pack(obs.flatten(0, 1)))
        items |= _named("next", self.codec.pack(after.flatten(0, 1).index_select(0, following)))
        if self.aux:
            items["aux"] = rollout.aux.flatten(0, 1).clone()
            items["next_aux"] = after_aux.flatten(0, 1).index_select(0, following)
        return items | {"action": actions.flatten(), "return": returns.flatten(), "discount": discount.flatten()}

    def observations(self, items: Items, name: str) -> Tensor:
        """Return observations (N, …) of items; `name` is "obs" or "next"."""
        return self.codec.unpack(_numbered(items, name))


@dataclass
class Tail:
    """The last decisions of a rollout, with which the next one's first sequences begin."""

    parts: dict[str, Tensor]
    """Tensors (burn_in, B, …) by name."""
    states: list[Tensor]
    """States (chunks, B, …) at the starts of these decisions' chunks."""


class SequenceItems:
    """Sequences of `burn_in` + `bptt` decisions.

    Args:
        codec: How observations are kept.
        bptt: Decisions that are learned from.
        burn_in: Decisions before them, a multiple of `bptt`.
    """

    def __init__(self, codec: ObservationCodec, bptt: int, burn_in: int) -> None:
        self.codec, self.bptt, self.burn_in = codec, bptt, burn_in

    def of(self, rollout: Rollout, actions: Tensor, tail: Tail | None) -> tuple[Items, Tail | None]:
        """Return the sequences of a rollout, and the tail for the next one.

        Args:
            rollout: Collected.
            actions: Choices (T, B) int64.
            tail: What the rollout before has left; None for the first: its first sequences would lack their burn-in
                and are left out.
        """
        obs = rollout.observations.by_step()
        after, after_aux = _following(rollout, obs)
        parts = _named("obs", self.codec.pack(obs)) | {
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
        more = _named("obs", self.codec.pack(after[-1:])) | {
            "aux": after_aux[-1:],
            "reset": torch.zeros_like(rollout.reset[-1:]),
        }
        whole = {name: torch.cat((x, more[name])) if name in more else x for name, x in parts.items()}
        length, steps = self.burn_in + self.bptt, parts["action"].shape[0]
        windows = range(0, steps - length + 1, self.bptt)
        items: Items = {}
        if windows:
            items = self._cut(whole, more, windows, length) | _named(
                "state", [torch.cat([x[start // self.bptt] for start in windows]) for x in states]
            )
        if not self.burn_in:
            return items, None
        chunks = self.burn_in // self.bptt
        kept = {name: x[-self.burn_in :].clone() for name, x in parts.items()}
        return items, Tail(kept, [x[-chunks:].clone() for x in states])

    @staticmethod
    def _cut(whole: Items, more: Items, windows: range, length: int) -> Items:
        return {
            name: torch.cat([x[start : start + length + (name in more)].transpose(0, 1) for start in windows])
            for name, x in whole.items()
        }

    def observations(self, items: Items) -> Tensor:
        """Return observations (S, burn_in + bptt + 1, …) of items."""
        return self.codec.unpack(_numbered(items, "obs"))

    @staticmethod
    def states(items: Items) -> tuple[Tensor, ...]:
        """Return the states at the sequences' starts."""
        return tuple(_numbered(items, "state"))


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
