"""One decision as a function of tensors alone, and the test that another runtime computes the same function.

An exported policy answers (observation, auxiliary input, reset, state) with (action, value, latent, new
state). The action is the distribution's most typical one, the latent is what curiosity and loop memory
make the next auxiliary input of, the state goes in and out by hand, and nothing is remembered inside.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from navi_core.policy import NavigationPolicy
from navi_core.policy.cores.base import State


class Acted(NamedTuple):
    """One decision of B rows.

    Attributes:
        action: (B, 4) unclamped.
        value: (B,).
        latent: (B, D) encoder output.
        state: After this step.
    """

    action: Tensor
    value: Tensor
    latent: Tensor
    state: State


Act = Callable[[Tensor, Tensor, Tensor, State], Acted]
"""(obs (B, 3, Az, El), aux (B, 3), reset (B,) bool, state) → the decision."""

_RESET_SHARE = 0.03


class ActingModule(nn.Module):
    """A policy's deterministic decision with the state as further positional inputs and outputs."""

    def __init__(self, policy: NavigationPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs: Tensor, aux: Tensor, reset: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Return action (B, 4), value (B,), latent (B, D) and the parts of the new state."""
        out = self.policy.act(obs, aux, state, reset, None)
        # Compiled programs trust the strides they were built for: what comes out must fit back in.
        return tuple(part.contiguous() for part in (out.action, out.value, out.embedding, *out.state))


@dataclass(frozen=True)
class Parity:
    """Largest differences between two runtimes over a flight, each with its own state fed back.

    Values, latents and states above 1 are compared relatively.

    Attributes:
        steps: Decisions compared.
        resets: Episodes that began after the first.
        action: Largest difference of an action.
        value: Largest difference of a value.
        latent: Largest difference of a latent.
        state: Largest difference of a state.
    """

    steps: int
    resets: int
    action: float
    value: float
    latent: float
    state: float

    @property
    def worst(self) -> float:
        """The largest of all; NaN where either runtime gave NaN."""
        return max((self.action, self.value, self.latent, self.state), key=lambda x: (x != x, x))


def example_inputs(policy: NavigationPolicy, rows: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Return inputs of an `ActingModule`: obs (B, 3, Az, El), aux (B, 3), reset (B,), state."""
    generator = torch.Generator().manual_seed(seed)
    config = policy.config
    obs = torch.rand(rows, 3, config.azimuth_bins, config.elevation_bins, generator=generator)
    obs[:, 1] = torch.randint(0, 300, obs[:, 1].shape, generator=generator).float()
    obs[:, 2] = (obs[:, 2] > 0.2).float()
    aux = torch.randn(rows, config.aux_inputs, generator=generator)
    reset = torch.rand(rows, generator=generator) < _RESET_SHARE
    return (obs, aux, reset, *policy.initial_state(rows))


@torch.no_grad()
def recurrent_parity(policy: NavigationPolicy, act: Act, *, rows: int = 1, steps: int = 200, seed: int = 0) -> Parity:
    """Fly the policy and another runtime of it side by side on drawn observations with episode ends.

    Args:
        policy: The policy, in evaluation mode on the CPU.
        act: The other runtime.
        rows: B.
        steps: Decisions.
        seed: Of observations and resets; from the second quarter on, one row begins an episode every so often.
    """
    ours: State = policy.initial_state(rows)
    theirs: State = policy.initial_state(rows)
    worst = torch.zeros(4, dtype=torch.float64)
    resets = 0
    for step in range(steps):
        obs, aux, reset, *_ = example_inputs(policy, rows, seed * steps + step)
        reset[step % rows] |= step % (steps // 4 + 1) == steps // 4
        if step == 0:
            reset[:] = True
        else:
            resets += int(reset.sum())
        out = policy.act(obs, aux, ours, reset, None)
        acted = act(obs, aux, reset, theirs)
        ours, theirs = out.state, acted.state
        state = max((_difference(a, b) for a, b in zip(ours, theirs)), key=lambda x: (x != x, x), default=0.0)
        pairs = ((out.action, acted.action), (out.value, acted.value), (out.embedding, acted.latent))
        now = torch.tensor([*(_difference(a, b) for a, b in pairs), state])
        worst = torch.maximum(worst, now.double())
    return Parity(steps, resets, *worst.tolist())


def _difference(ours: Tensor, theirs: Tensor) -> float:
    return ((ours - theirs).abs() / ours.abs().clamp_min(1)).max().item()
