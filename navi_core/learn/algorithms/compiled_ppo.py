"""Compiled PPO for small networks, memoryless or MinGRU, on a CPU: hand-written gradients in numba loops, no autograd.

With a few thousand weights, call overhead dominates. `runs_compiled` selects this path from the configuration. Weights,
optimiser, rollouts, random draws and checkpoints are those of `PPOLearner`, the autograd version. A run may be
evaluated, resumed and exported like any other.
"""

import math
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from navi_core.config import TrainConfig
from navi_core.learn.algorithms.ppo import PPOLearner, PPOMicroBatch
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.collector import Collector
from navi_core.policy import ActOutput, NavigationPolicy, RewardShaper
from navi_core.policy.cores import MinGRUBlock
from navi_core.policy.cores.base import State
from navi_core.record import StageTimer
from navi_core.tasks.classic_control import NativeStep
from navi_core.tasks.task import ReferenceTask
from navi_core.world.interface import Environment

Numbers = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

_MOST_WEIGHTS = 2**17
"""Number of weights up to which call overhead dominates the matrix products."""


def runs_compiled(config: TrainConfig, policy: nn.Module, env: Environment, device: torch.device) -> bool:
    """Return whether a run uses the compiled path: PPO on a CPU, a small network of core none or mingru.

    Observations must be vectors, and actions numbers from 0 to A − 1.
    """
    network, spaces = config.policy, env.spaces
    if spaces is None or spaces.shape or not spaces.choices:
        return False
    return (
        config.algorithm == "ppo"
        and (device.type, config.precision, config.execution) == ("cpu", "fp32", "eager")
        and network.core in ("none", "mingru")
        and (network.core_layers, network.aux) == (1, "off")
        and not (network.separate_value or network.stop_value_gradient)
        and spaces.choices == tuple((float(choice),) for choice in range(len(spaces.choices)))
        and sum(p.numel() for p in policy.parameters()) <= _MOST_WEIGHTS
    )


class CompiledCollector(Collector):
    """Rollout collector with a compiled policy, and step where the task has one; arguments of `Collector`."""

    def __init__(
        self,
        env: Environment,
        policy: NavigationPolicy,
        shaper: RewardShaper,
        config: TrainConfig,
        *,
        device: torch.device,
        workers: Workers = ALONE,
    ) -> None:
        super().__init__(env, policy, shaper, config, device=device, workers=workers)
        self._act = CompiledNetwork(policy).act
        if isinstance(env, ReferenceTask) and NativeStep.supports(env):
            self._fly = NativeStep(env)


class CompiledPPOLearner(PPOLearner):
    """PPO learner with a hand-written, compiled gradient of the loss; the arguments are those of `PPOLearner`."""

    def __init__(
        self,
        policy: NavigationPolicy,
        shaper: RewardShaper,
        config: TrainConfig,
        device: torch.device,
        workers: Workers = ALONE,
    ) -> None:
        super().__init__(policy, shaper, config, device, workers)
        self._network = CompiledNetwork(policy)

    def _backward(self, batch: PPOMicroBatch, now: dict[str, float], timer: StageTimer) -> None:
        """Run the compiled forward and backward pass of one micro-batch; accumulate its gradient and statistics."""
        ppo, network, s = self.config.ppo, self._network, batch.sequences
        with timer("policy_evaluation"):
            logits, values = network.forward(s.obs, s.state, s.reset)
        with timer("loss"):
            gradient, value_gradient = torch.empty_like(logits), torch.empty_like(values)
            ratios, statistics, peaks = torch.empty(len(values)), np.zeros(5), np.zeros(2)
            sampled = (s.actions, s.log_probs, s.values, s.advantages, s.returns)
            actions, log_probs, old_values, advantages, returns = (x.reshape(-1).numpy() for x in sampled)
            ppo_gradient(
                logits.numpy(), values.numpy(), actions, log_probs, old_values, advantages, returns, now["clip"],
                now["entropy_coefficient"], ppo.value_coefficient,
                math.inf if ppo.value_clip is None else ppo.value_clip, batch.share,
                gradient.numpy(), value_gradient.numpy(), ratios.numpy(), statistics, peaks,
            )  # fmt: skip
        with timer("backward"):
            network.backward(gradient, value_gradient)
        with timer("rnd_step"):
            curiosity = self.shaper.learn(network.embedding, batch.share)
        with timer("statistics"):
            if batch.ratios is not None and batch.positions is not None:
                batch.ratios.index_copy_(0, batch.positions, ratios)
            actor, critic, entropy, divergence, clipped = (statistics / len(ratios)).tolist()
            total = actor + ppo.value_coefficient * critic - now["entropy_coefficient"] * entropy
            means = torch.tensor((actor, critic, entropy, total, divergence, clipped, float(curiosity)))
            self.steps.accumulate(means * batch.share, torch.from_numpy(peaks).float())


class CompiledNetwork:
    """Compiled policy: n → D → D, optionally a MinGRU, heads → 64 → A logits and → 64 → 1 value; tanh between layers.

    Args:
        policy: `NavigationPolicy` with vector observations and discrete actions; its parameters are read, their
            gradients written.
    """

    def __init__(self, policy: Any) -> None:  # noqa: ANN401 (modules that `runs_compiled` admits)
        self._scale = policy.encoder.scale
        first, second = (layer for layer in policy.encoder.layers if isinstance(layer, nn.Linear))
        self._trunk, self._actor, self._critic = (
            (first, second), (policy.heads.actor[0], policy.heads.actor[2]),
            (policy.heads.critic[0], policy.heads.critic[2]),
        )  # fmt: skip
        self._core = policy.core if isinstance(policy.core, MinGRUBlock) else None
        self._seen: tuple[Tensor, ...] = ()
        self._recurrence: tuple[Tensor, ...] = ()

    @property
    def embedding(self) -> Tensor:
        """Encoder output (S·L, D) of the last `forward`."""
        return self._seen[2]

    @torch.no_grad()
    def forward(self, obs: Tensor, state: State, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Compute logits (S·L, A) and values (S·L, 1) of sequences of observations (S, L, N), resets (S, L)."""
        scaled = obs.flatten(0, 1) / self._scale
        first = _hidden(self._trunk[0], scaled)
        second = _hidden(self._trunk[1], first)
        features = second if self._core is None else self._remember(second, state[0], reset)
        actor, critic = (_hidden(head[0], features) for head in (self._actor, self._critic))
        self._seen = (scaled, first, second, features, actor, critic)
        return _linear(self._actor[1], actor), _linear(self._critic[1], critic)

    @torch.no_grad()
    def backward(self, logits: Tensor, values: Tensor) -> None:
        """Backpropagate output gradients (n, A) and (n, 1) of the last `forward`; add the gradients of the weights."""
        scaled, first, second, features, actor, critic = self._seen
        through_actor = _through_tanh(_back(self._actor[1], logits, actor), actor)
        through_critic = _through_tanh(_back(self._critic[1], values, critic), critic)
        at_second = _back(self._actor[0], through_actor, features) + _back(self._critic[0], through_critic, features)
        if self._core is not None:
            gates, before, reset = self._recurrence
            grid = (*reset.shape, before.shape[-1])
            mingru_gradient(
                gates.view(*reset.shape, -1).numpy(), before.numpy(), reset.numpy(),
                features.view(grid).numpy(), at_second.view(grid).numpy(),
            )  # fmt: skip
            at_second = _back(self._core, gates, second)
        at_first = _back(self._trunk[1], _through_tanh(at_second, second), first)
        _add_gradient(self._trunk[0], _through_tanh(at_first, first), scaled)

    def act(self, obs: Tensor, aux: Tensor, state: State, reset: Tensor, noise: Tensor) -> ActOutput:  # noqa: ARG002 (arguments of `NavigationPolicy.act`)
        """Sample an action of every row; compiled equivalent of `NavigationPolicy.act`, with the same arguments."""
        logits, values = self.forward(obs[:, None], state, reset[:, None])
        actions, log_probs = torch.empty((len(obs), 1)), torch.empty(len(obs))
        draw_actions(logits.numpy(), noise[:, 0].numpy(), actions[:, 0].numpy(), log_probs.numpy())
        after = state if self._core is None else (self._seen[3],)
        return ActOutput(actions, log_probs, values[:, 0], after, self.embedding)

    def _remember(self, inputs: Tensor, before: Tensor, reset: Tensor) -> Tensor:
        """Compute the MinGRU's states (S·L, D) of inputs (S·L, D); keep its gates for `backward`."""
        assert self._core is not None
        gates, reset = _linear(self._core, inputs), reset.contiguous()
        closed = gates.numpy()[:, : before.shape[-1]]
        # σ(x) = (1 + tanh(x/2))/2.
        closed *= np.float32(0.5)
        np.tanh(closed, out=closed)
        states = torch.empty_like(inputs)
        mingru_states(
            gates.view(*reset.shape, -1).numpy(), before.numpy(), reset.numpy(), states.view(*reset.shape, -1).numpy()
        )
        self._recurrence = (gates, before, reset)
        return states


def _linear(layer: nn.Linear | MinGRUBlock, x: Tensor) -> Tensor:
    return torch.addmm(layer.bias, x, layer.weight.T)


def _hidden(layer: nn.Linear, x: Tensor) -> Tensor:
    """Apply a linear layer and tanh (forward pass); numpy's tanh takes a tenth of torch's time on a CPU."""
    out = _linear(layer, x)
    np.tanh(out.numpy(), out=out.numpy())
    return out


def _through_tanh(gradient: Tensor, out: Tensor) -> Tensor:
    """Backpropagate a gradient (n, w) through y = tanh(x), in place: multiply it by 1 − y²."""
    times_tanh_slope(gradient.numpy(), out.numpy())
    return gradient


def _add_gradient(layer: nn.Linear | MinGRUBlock, gradient: Tensor, x: Tensor) -> None:
    for parameter, part in ((layer.weight, gradient.T @ x), (layer.bias, gradient.sum(0))):
        parameter.grad = part if parameter.grad is None else parameter.grad.add_(part)


def _back(layer: nn.Linear | MinGRUBlock, gradient: Tensor, x: Tensor) -> Tensor:
    """Backpropagate through a linear layer: add its gradients and return the gradient of its inputs x (n, in)."""
    _add_gradient(layer, gradient, x)
    return gradient @ layer.weight


@numba.njit(cache=True, fastmath=True, error_model="numpy")
def times_tanh_slope(gradient: Numbers, out: Numbers) -> None:
    """Multiply a gradient (n, w) by tanh's derivative 1 − y², y = tanh(x), in place; compiled."""
    a, y = gradient.ravel(), out.ravel()
    for i in range(a.size):
        a[i] *= np.float32(1.0) - y[i] * y[i]


@numba.njit(cache=True, fastmath=True, error_model="numpy")
def mingru_states(gates: Numbers, before: Numbers, reset: Flags, states: Numbers) -> None:
    """Run the MinGRU recurrence over S sequences of L steps.

    Args:
        gates: (S, L, 2D) tanh(z/2), then the candidates.
        before: (S, D) states before the first step.
        reset: (S, L) where the state is zeroed first.
        states: (S, L, D), written.
    """
    sequences, steps, width = states.shape
    h = np.empty(width, dtype=np.float32)
    half = np.float32(0.5)
    for s in range(sequences):
        h[:] = before[s]
        for t in range(steps):
            if reset[s, t]:
                h[:] = np.float32(0.0)
            gate, out = gates[s, t], states[s, t]
            for i in range(width):
                h[i] += (half + half * gate[i]) * (gate[width + i] - h[i])
                out[i] = h[i]


@numba.njit(cache=True, fastmath=True, error_model="numpy")
def mingru_gradient(gates: Numbers, before: Numbers, reset: Flags, states: Numbers, gradient: Numbers) -> None:
    """Backpropagate through `mingru_states`, in place.

    Args:
        gates: (S, L, 2D) tanh(z/2) and candidates; the gradients of z and of the candidates are written there.
        before: (S, D) states before the first step.
        reset: (S, L).
        states: (S, L, D) of `mingru_states`.
        gradient: (S, L, D) of the states.
    """
    sequences, steps, width = states.shape
    running = np.empty(width, dtype=np.float32)
    zero, quarter, half, one = np.float32(0.0), np.float32(0.25), np.float32(0.5), np.float32(1.0)
    for s in range(sequences):
        running[:] = zero
        for t in range(steps - 1, -1, -1):
            gate, at, previous = gates[s, t], gradient[s, t], states[s, t - 1] if t else before[s]
            keep = zero if reset[s, t] else one
            for i in range(width):
                g, tanh = at[i] + running[i], gate[i]
                z = half + half * tanh
                gate[i] = g * (gate[width + i] - keep * previous[i]) * quarter * (one - tanh * tanh)
                gate[width + i] = g * z
                running[i] = g * (one - z) * keep


@numba.njit(cache=True, error_model="numpy")
def draw_actions(logits: Numbers, noise: Numbers, actions: Numbers, log_probs: Numbers) -> None:
    """Sample discrete actions at the quantiles of normal noise, like `Categorical.sample`.

    Args:
        logits: (B, A) action logits.
        noise: (B,) standard normal draws.
        actions: (B,) action indices, written.
        log_probs: (B,) log-probabilities of the actions, written.
    """
    rows, count = logits.shape
    for row in range(rows):
        most = logits[row].max()
        total = 0.0
        for a in range(count):
            total += math.exp(logits[row, a] - most)
        left = 0.5 * math.erfc(-noise[row] * math.sqrt(0.5)) * total
        chosen = count - 1
        for a in range(count - 1):
            left -= math.exp(logits[row, a] - most)
            if left < 0.0:
                chosen = a
                break
        actions[row] = chosen
        log_probs[row] = logits[row, chosen] - most - math.log(total)


# Longer than 60 lines: one compiled loop over decisions, of which half documents the arguments.
@numba.njit(cache=True, error_model="numpy")
def ppo_gradient(
    logits: Numbers,
    values: Numbers,
    actions: Numbers,
    old_log_probs: Numbers,
    old_values: Numbers,
    advantages: Numbers,
    returns: Numbers,
    clip: float,
    entropy_coefficient: float,
    value_coefficient: float,
    value_clip: float,
    share: float,
    logit_gradient: Numbers,
    value_gradient: Numbers,
    ratios: Numbers,
    statistics: npt.NDArray[np.float64],
    peaks: npt.NDArray[np.float64],
) -> None:
    """Compute the gradients of the PPO loss with respect to logits and values, in closed form.

    loss = −mean(min(ρA, clip(ρ, 1 ± ε)A)) + c_v · mean((V − R)²) − c_e · mean(H); with p = softmax(logits),
    ∂log p_a/∂l_k = [k = a] − p_k and ∂H/∂l_k = −p_k (log p_k + H).

    Args:
        logits: (n, A).
        values: (n, 1).
        actions: (n,) action indices.
        old_log_probs: (n,) log-probabilities under the acting policy.
        old_values: (n,) values predicted by the acting policy.
        advantages: (n,).
        returns: (n,).
        clip: ε.
        entropy_coefficient: c_e.
        value_coefficient: c_v.
        value_clip: Bound of the value step, see `value_loss`; infinite for none.
        share: Weight of these decisions among those of the gradient step.
        logit_gradient: (n, A), written.
        value_gradient: (n, 1), written.
        ratios: (n,) importance ratios ρ, written.
        statistics: (5,) sums over decisions of policy loss, value loss, entropy, approximate KL and clipped ratios.
        peaks: (2,) largest |ρ − 1| and |V − old V|.
    """
    rows, count = logits.shape
    log_p = np.empty(count, dtype=np.float64)
    for i in range(rows):
        most = logits[i].max()
        total = 0.0
        for k in range(count):
            total += math.exp(logits[i, k] - most)
        log_total = math.log(total) + most
        entropy = 0.0
        for k in range(count):
            log_p[k] = logits[i, k] - log_total
            entropy -= math.exp(log_p[k]) * log_p[k]
        a, advantage = int(actions[i]), advantages[i]
        log_ratio = log_p[a] - old_log_probs[i]
        ratio = math.exp(log_ratio)
        plain = ratio * advantage
        clipped = min(max(ratio, 1.0 - clip), 1.0 + clip) * advantage
        # Beyond the clip the minimum is constant: the gradient of this decision is zero.
        slope = -plain if plain <= clipped else 0.0
        for k in range(count):
            p = math.exp(log_p[k])
            gradient = slope * ((1.0 if k == a else 0.0) - p)
            gradient += entropy_coefficient * p * (log_p[k] + entropy)
            logit_gradient[i, k] = gradient * share / rows
        step = values[i, 0] - old_values[i]
        error = values[i, 0] - returns[i]
        held = old_values[i] + min(max(step, -value_clip), value_clip) - returns[i]
        larger = abs(step) > value_clip and abs(held) > abs(error)
        value_gradient[i, 0] = 0.0 if larger else value_coefficient * 2.0 * error * share / rows
        ratios[i] = ratio
        statistics[0] -= min(plain, clipped)
        statistics[1] += held * held if larger else error * error
        statistics[2] += entropy
        statistics[3] += ratio - 1.0 - log_ratio
        statistics[4] += 1.0 if abs(ratio - 1.0) > clip else 0.0
        peaks[0], peaks[1] = max(peaks[0], abs(ratio - 1.0)), max(peaks[1], abs(step))
