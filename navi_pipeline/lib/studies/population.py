"""Statistics of a study's trials as a population: how far the proposals still spread, and what they earned."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from optuna.trial import TrialState

from navi_core.config import config_hash
from navi_core.record.population import entropy, mean_distance
from navi_pipeline.lib.records import pipeline_log
from navi_pipeline.lib.studies.catalogue import search_space
from navi_pipeline.lib.studies.trial_queue import TrialQueue
from navi_pipeline.settings import ChoiceParameter, Parameter

_BINS = 10


def record_population(queue: TrialQueue) -> dict[str, float]:
    """Write the statistics of the trials so far as metric rows of the run `study-<name>`, and return them.

    The step of the rows is the number of trials that have a value. No row is written before the first.
    """
    done = [t for t in queue.latest().values() if t.state in (TrialState.COMPLETE, TrialState.PRUNED) and t.values]
    if not done:
        return {}
    found = trial_statistics(search_space(queue.config), [t.params for t in done], [t.values[0] for t in done])
    with pipeline_log(f"study-{queue.config.name}", config_hash=config_hash(queue.config)) as log:
        log.scalars(len(done), found)
    return found


def trial_statistics(
    space: dict[str, Parameter], params: Sequence[dict[str, Any]], values: Sequence[float]
) -> dict[str, float]:
    """Return the statistics of N trials.

    Args:
        space: Search space, parameter by setting.
        params: Settings of each trial.
        values: First objective of each trial.

    Returns:
        strategy_entropy [nats] and population_diversity (mean distance of two trials, as a share of the range), both
        means over the settings; spread_<setting>, that distance of one setting; objective_mean, _std, _min, _max;
        objective_share_00 … _09, the histogram of the values between their least and largest.
    """
    spreads, entropies = {}, []
    for name, parameter in space.items():
        drawn = [one[name] for one in params if name in one]
        if not drawn:
            continue
        if isinstance(parameter, ChoiceParameter):
            counts = np.array([sum(value == choice for value in drawn) for choice in parameter.choices])
            pairs = len(drawn) * (len(drawn) - 1)
            spreads[name] = 1.0 - float((counts * (counts - 1)).sum()) / pairs if pairs else 0.0
        else:
            scale = math.log if parameter.log else float
            low, high = scale(parameter.low), scale(parameter.high)
            places = [(scale(value) - low) / ((high - low) or 1.0) for value in drawn]
            counts = np.histogram(places, _BINS, (0.0, 1.0))[0]
            spreads[name] = mean_distance(places)
        entropies.append(float(entropy(counts)))
    shares = np.histogram(values, _BINS)[0] / len(values)
    return {
        "strategy_entropy": float(np.mean(entropies)) if entropies else 0.0,
        "population_diversity": float(np.mean(list(spreads.values()))) if spreads else 0.0,
        **{f"spread_{name}": spread for name, spread in spreads.items()},
        **{f"objective_{name}": float(getattr(np, name)(values)) for name in ("mean", "std", "min", "max")},
        **{f"objective_share_{place:02d}": float(share) for place, share in enumerate(shares)},
    }
