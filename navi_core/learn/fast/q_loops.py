"""The compiled loops of the fast Q-learner: ε-greedy choices, the loss, and drift smoothing of targets."""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt

from navi_core.kernels.draws import draw

__all__ = ["choose_greedily", "q_gradient", "smooth_targets"]

Numbers = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]


@numba.njit(cache=True, error_model="numpy")
def choose_greedily(
    values: Numbers, epsilon: npt.NDArray[np.float64], key: int, decision: int, actions: Counts
) -> None:
    """Take every row's best action, or with probability ε any.

    Args:
        values: (B, A).
        epsilon: (B,).
        key: `counter_random.stream_key` of the seed.
        decision: Decisions made before; a draw is a function of (key, row, decision).
        actions: (B,), written.
    """
    rows, count = values.shape
    for row in range(rows):
        lot = draw(key, row, 0, decision)
        if lot < epsilon[row]:
            actions[row] = min(np.int64(lot * count / epsilon[row]), count - 1)
            continue
        best = 0
        for a in range(1, count):
            if values[row, a] > values[row, best]:
                best = a
        actions[row] = best


@numba.njit(cache=True, error_model="numpy")
def q_gradient(
    values: Numbers,
    actions: Counts,
    targets: Numbers,
    weights: Numbers,
    huber: float,
    gradient: Numbers,
    errors: Numbers,
    sums: npt.NDArray[np.float64],
) -> None:
    """Derive the weighted mean Huber loss by the values.

    Args:
        values: (n, A).
        actions: (n,) that were taken.
        targets: (n,).
        weights: (n,) importance weights.
        huber: Difference above which the loss is linear.
        gradient: (n, A), written.
        errors: (n,) temporal differences target − value, written.
        sums: (5,) loss, difference, its square, value and target are added, as means over the minibatch.
    """
    rows, count = values.shape
    for i in range(rows):
        for k in range(count):
            gradient[i, k] = 0.0
        value = values[i, actions[i]]
        error = targets[i] - value
        errors[i] = error
        size = abs(error)
        if size <= huber:
            slope, loss = -error, 0.5 * error * error
        else:
            slope, loss = (-huber if error > 0 else huber), huber * (size - 0.5 * huber)
        gradient[i, actions[i]] = slope * weights[i] / rows
        sums[0] += loss * weights[i] / rows
        sums[1] += error / rows
        sums[2] += error * error / rows
        sums[3] += value / rows
        sums[4] += targets[i] / rows


@numba.njit(cache=True, error_model="numpy")
def smooth_targets(
    near: Numbers,
    h: Numbers,
    k: int,
    sigma_min: float,
    sigma_max: float,
    rate: float,
    tau: float,
    out: Numbers,
    figures: npt.NDArray[np.float64],
) -> float:
    """Move numbers toward their latent neighbours' mean; the compiled twin of `DriftSmoother` on (N,) values.

    Args:
        near: (N, N) 1 − ‖a − b‖²/2 of unit latents a and b: their products, where neither is zero.
        h: (N,).
        k: Neighbours, below N.
        sigma_min: Least width.
        sigma_max: Largest width.
        rate: α_step · Δt.
        tau: Bound of a step.
        out: (N,), written.
        figures: (3,) mean |step|, share clipped and mean |G − h| are added.

    Returns:
        Share of neighbours whose number lies within one deviation of the batch.
    """
    n = len(h)
    best, place = np.empty(k, np.float64), np.empty(k, np.int64)
    mean = 0.0
    for i in range(n):
        mean += h[i] / n
    spread = 0.0
    for i in range(n):
        spread += (h[i] - mean) ** 2 / n
    spread = math.sqrt(spread)
    alike = 0
    for i in range(n):
        held = 0
        for j in range(n):
            if j == i or (held == k and near[i, j] <= best[k - 1]):
                continue
            at = held if held < k else k - 1
            while at > 0 and best[at - 1] < near[i, j]:
                best[at], place[at] = best[at - 1], place[at - 1]
                at -= 1
            best[at], place[at] = near[i, j], j
            held = min(held + 1, k)
        far = max(2.0 - 2.0 * best[k - 1], 0.0)
        sigma = min(max(math.sqrt(far), sigma_min), sigma_max)
        total, drawn = 0.0, 0.0
        for m in range(k):
            weight = math.exp((best[m] - best[0]) / (sigma * sigma))
            total += weight
            drawn += weight * h[place[m]]
            alike += abs(h[place[m]] - h[i]) <= spread
        apart = drawn / total - h[i]
        step = rate * apart
        if abs(step) > tau:
            step = tau if step > 0 else -tau
            figures[1] += 1.0 / n
        figures[0] += abs(step) / n
        figures[2] += abs(apart) / n
        out[i] = h[i] + step
    return alike / (n * k)
