"""Statistics of a population of actors or trials: entropy and divergence of choices, mean pairwise distance."""

from collections.abc import Mapping, Sequence

import numpy as np


def entropy(counts: np.ndarray) -> np.ndarray:
    """Return the entropies of histograms.

    Args:
        counts: (…, K) counts or shares, each histogram with at least one entry.

    Returns:
        (…,) float64 in nats, 0 … ln K.
    """
    shares = counts / counts.sum(-1, keepdims=True)
    return np.asarray(0.0 - np.sum(shares * np.log(np.where(shares > 0, shares, 1.0)), -1))


def divergence(counts: np.ndarray) -> float:
    """Return the Jensen–Shannon divergence of N histograms (Lin 1991): entropy of their mean less their mean entropy.

    Args:
        counts: (N, K) counts, each histogram with at least one entry.

    Returns:
        Nats, 0 (all alike) … ln N (no choice in common).
    """
    shares = counts / counts.sum(-1, keepdims=True)
    return max(0.0, float(entropy(shares.mean(0)) - entropy(shares).mean()))


def mean_distance(values: Sequence[float]) -> float:
    """Return the mean |a − b| over all pairs of values (Gini's mean difference); 0 for a single one."""
    n = len(values)
    return float(np.sum((2 * np.arange(n) - n + 1) * np.sort(values)) * 2 / (n * (n - 1))) if n > 1 else 0.0


def actor_statistics(actions: Mapping[int, np.ndarray], returns: Mapping[int, Sequence[float]]) -> dict[str, float]:
    """Return metrics of a population of actors that fly with one policy and explore differently.

    Args:
        actions: (K,) counts of the chosen actions, by actor.
        returns: Returns of the episodes that ended, by actor.

    Returns:
        strategy_entropy (mean over actors), its _min and _max, population_diversity [nats]; action_share_00 … of all
        choices; population_return_spread, the deviation of the actors' mean returns, with two actors or more.
    """
    found: dict[str, float] = {}
    if actions:
        counts = np.stack([actions[actor] for actor in sorted(actions)]).astype(float)
        each, shares = entropy(counts), counts.sum(0) / counts.sum()
        found = {
            "strategy_entropy": float(each.mean()),
            "strategy_entropy_min": float(each.min()),
            "strategy_entropy_max": float(each.max()),
            "population_diversity": divergence(counts),
            **{f"action_share_{action:02d}": float(share) for action, share in enumerate(shares)},
        }
    means = [float(np.mean(values)) for values in returns.values() if values]
    return found | ({"population_return_spread": float(np.std(means))} if len(means) > 1 else {})
