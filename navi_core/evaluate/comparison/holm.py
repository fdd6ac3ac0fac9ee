"""Holm correction for several verdicts at once."""

from collections.abc import Sequence

import numpy as np

from navi_core.errors import EvaluationError


def holm(p_values: Sequence[float], *, level: float = 0.05) -> list[bool]:
    """Return which hypotheses are rejected, with a family-wise error rate of at most `level`.

    Holm (1979): the smallest of n p-values has to be below level / n, the next one below level / (n − 1), and so on;
    the first that is not ends the procedure.

    Args:
        p_values: One per hypothesis, in [0, 1].
        level: Probability of at least one false rejection.

    Raises:
        EvaluationError: A p-value is not within [0, 1].
    """
    values = np.asarray(p_values, dtype=np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise EvaluationError(f"p-values are within [0, 1], not {values.min()} to {values.max()}")
    rejected = [False] * len(values)
    for rank, index in enumerate(np.argsort(values, kind="stable")):
        if values[index] >= level / (len(values) - rank):
            break
        rejected[int(index)] = True
    return rejected
