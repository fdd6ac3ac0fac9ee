"""The compiled loops between the matrix products: choosing actions, the loss, and Adam."""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt

from navi_core.kernels.draws import draw

__all__ = ["STATISTICS", "adam", "choose", "gather", "ppo_gradient", "times_tanh_slope"]

Numbers = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]

STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
"""What `ppo_gradient` adds up, in this order."""


@numba.njit(cache=True, fastmath=True, error_model="numpy")
def times_tanh_slope(gradient: Numbers, out: Numbers) -> None:
    """Multiply a gradient (n, w) by the slope 1 − y² of y = tanh(x), in place."""
    a, y = gradient.ravel(), out.ravel()
    for i in range(a.size):
        a[i] *= np.float32(1.0) - y[i] * y[i]


@numba.njit(cache=True, error_model="numpy")
def choose(
    logits: Numbers, key: int, first_row: int, decision: int, actions: Counts, log_probs: Numbers, greedy: bool
) -> None:
    """Draw an action of every row, and its log-probability.

    Args:
        logits: (B, A).
        key: `counter_random.stream_key` of the seed.
        first_row: Number of the first row.
        decision: Decisions made before; a draw is a function of (key, row, decision).
        actions: (B,), written.
        log_probs: (B,), written.
        greedy: Take the most probable instead.
    """
    rows, count = logits.shape
    for row in range(rows):
        most = logits[row, 0]
        for a in range(1, count):
            most = max(most, logits[row, a])
        total = 0.0
        for a in range(count):
            total += math.exp(logits[row, a] - most)
        chosen = 0
        if greedy:
            for a in range(1, count):
                if logits[row, a] > logits[row, chosen]:
                    chosen = a
        else:
            left = draw(key, first_row + row, 0, decision) * total
            chosen = count - 1
            for a in range(count):
                left -= math.exp(logits[row, a] - most)
                if left < 0.0:
                    chosen = a
                    break
        actions[row] = chosen
        log_probs[row] = logits[row, chosen] - most - math.log(total)


@numba.njit(cache=True, error_model="numpy")
def gather(
    index: Counts,
    obs: Numbers,
    actions: Counts,
    log_probs: Numbers,
    advantages: Numbers,
    returns: Numbers,
    obs_out: Numbers,
    actions_out: Counts,
    log_probs_out: Numbers,
    advantages_out: Numbers,
    returns_out: Numbers,
) -> None:
    """Copy the decisions `index` (n,) of a rollout (M, …) side by side."""
    for i in range(len(index)):
        j = index[i]
        for k in range(obs.shape[1]):
            obs_out[i, k] = obs[j, k]
        actions_out[i] = actions[j]
        log_probs_out[i] = log_probs[j]
        advantages_out[i] = advantages[j]
        returns_out[i] = returns[j]


@numba.njit(cache=True, error_model="numpy")
def ppo_gradient(
    logits: Numbers,
    values: Numbers,
    actions: Counts,
    old_log_probs: Numbers,
    advantages: Numbers,
    returns: Numbers,
    clip: float,
    entropy_coefficient: float,
    value_coefficient: float,
    logit_gradient: Numbers,
    value_gradient: Numbers,
    sums: npt.NDArray[np.float64],
) -> None:
    """Derive the PPO loss by logits and values.

    loss = −mean(min(ρA, clip(ρ, 1 ± ε)A)) + c_v · mean((V − R)²) − c_e · mean(H); with p = softmax(logits),
    ∂log p_a/∂l_k = [k = a] − p_k and ∂H/∂l_k = −p_k (log p_k + H).

    Args:
        logits: (n, A).
        values: (n,).
        actions: (n,).
        old_log_probs: (n,) of the acting policy.
        advantages: (n,).
        returns: (n,).
        clip: ε.
        entropy_coefficient: c_e.
        value_coefficient: c_v.
        logit_gradient: (n, A), written.
        value_gradient: (n,), written.
        sums: (5,) float64, the `STATISTICS` of these decisions are added.
    """
    rows, count = logits.shape
    log_p = np.empty(count, dtype=np.float64)
    for i in range(rows):
        most = logits[i, 0]
        for k in range(1, count):
            most = max(most, logits[i, k])
        total = 0.0
        for k in range(count):
            total += math.exp(logits[i, k] - most)
        log_total = math.log(total) + most
        entropy = 0.0
        for k in range(count):
            log_p[k] = logits[i, k] - log_total
            entropy -= math.exp(log_p[k]) * log_p[k]
        a, advantage = actions[i], advantages[i]
        log_ratio = log_p[a] - old_log_probs[i]
        ratio = math.exp(log_ratio)
        plain = ratio * advantage
        clipped = min(max(ratio, 1.0 - clip), 1.0 + clip) * advantage
        # Beyond the clip the minimum is a constant, and nothing is learned from this decision.
        slope = -plain / rows if plain <= clipped else 0.0
        for k in range(count):
            p = math.exp(log_p[k])
            gradient = slope * ((1.0 if k == a else 0.0) - p)
            gradient += entropy_coefficient * p * (log_p[k] + entropy) / rows
            logit_gradient[i, k] = gradient
        error = values[i] - returns[i]
        value_gradient[i] = value_coefficient * 2.0 * error / rows
        sums[0] -= min(plain, clipped)
        sums[1] += error * error
        sums[2] += entropy
        sums[3] += ratio - 1.0 - log_ratio
        sums[4] += 1.0 if abs(ratio - 1.0) > clip else 0.0


@numba.njit(cache=True, error_model="numpy")
def adam(
    params: Numbers,
    grads: Numbers,
    first: Numbers,
    second: Numbers,
    step: int,
    learning_rate: float,
    max_grad_norm: float,
    eps: float,
) -> float:
    """Clip the gradient to a global norm and take one step of Adam (Kingma and Ba 2015) in place; return the norm.

    Args:
        params: (P,), changed.
        grads: (P,).
        first: (P,) first moment, changed.
        second: (P,) second moment, changed.
        step: Number of this step, from 1.
        learning_rate: α.
        max_grad_norm: Largest norm.
        eps: ε.
    """
    square = 0.0
    for i in range(len(grads)):
        square += np.float64(grads[i]) * grads[i]
    norm = math.sqrt(square)
    scale = np.float32(min(1.0, max_grad_norm / (norm + 1e-6)))
    rate = np.float32(learning_rate / (1.0 - 0.9**step))
    correct = np.float32(1.0 / math.sqrt(1.0 - 0.999**step))
    small = np.float32(eps)
    keep1, take1, keep2, take2 = np.float32(0.9), np.float32(0.1), np.float32(0.999), np.float32(0.001)
    for i in range(len(params)):
        g = grads[i] * scale
        first[i] = keep1 * first[i] + take1 * g
        second[i] = keep2 * second[i] + take2 * g * g
        params[i] -= rate * first[i] / (np.sqrt(second[i]) * correct + small)
    return norm
