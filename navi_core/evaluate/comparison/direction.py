"""Direction of improvement of each episode metric."""

import re

_LOWER_IS_BETTER = frozenset(
    {"collisions", "collisions_per_minute", "collisions_per_100m", "goal_distance", "recovery_steps"}
    | {f"{name}_steps_to_{share}" for name in ("c_vis", "c_visit", "c_surf") for share in (50, 75, 90)}
)
_COVERAGE = re.compile(r"(c_vis|c_visit|c_surf)(_(auc|final|m2|at_\d+|steps_to_\d+))?|seen_per_metre")
_HIGHER_IS_BETTER = frozenset({"collision_free", "clearance_p5", "success", "spl", "soft_spl"})


def direction(metric: str, task: str = "explore") -> int:
    """Return 1 for a metric to maximise, −1 for one to minimise, 0 for one without a better direction.

    Args:
        metric: Name of an episode metric.
        task: The task flown; in point-goal flight coverage has no direction.
    """
    if _COVERAGE.fullmatch(metric) and task != "explore":
        return 0
    if metric in _LOWER_IS_BETTER:
        return -1
    return 1 if metric in _HIGHER_IS_BETTER or _COVERAGE.fullmatch(metric) else 0
