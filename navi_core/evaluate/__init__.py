"""Evaluation without learning: frozen starts, true coverage, paired statistics, gated promotion."""

from navi_core.evaluate.comparison.direction import direction
from navi_core.evaluate.comparison.holm import holm
from navi_core.evaluate.comparison.random_effects import TwoWayInterval, performance_profile, two_way_interval
from navi_core.evaluate.comparison.seeds import SeedComparison, compare_seeds, seed_matrix
from navi_core.evaluate.comparison.statistics import (
    Interval,
    bootstrap_interval,
    interquartile_mean,
    interval_over_scenes,
)
from navi_core.evaluate.comparison.subjects import Comparison, compare
from navi_core.evaluate.flight.autopilot import Autopilot, take_off
from navi_core.evaluate.flight.code_digest import flight_code
from navi_core.evaluate.flight.course import Course, Start, build_course
from navi_core.evaluate.flight.subjects import named_subject
from navi_core.evaluate.metrics.coverage import Coverage, FloorTruth, measure_coverage
from navi_core.evaluate.pictures.maps import top_down_map
from navi_core.evaluate.pictures.traces import write_traces
from navi_core.evaluate.piecewise import evaluate_in_pieces, join_results
from navi_core.evaluate.promotion import (
    Decision,
    confirmed,
    confirming,
    decide,
    decide_and_confirm,
    promote,
    scenes_seen,
)
from navi_core.evaluate.protocol import evaluate
from navi_core.evaluate.recording import record_comparison, record_decision, record_evaluation
from navi_core.evaluate.result import EvalResult

__all__ = [
    "Autopilot",
    "Comparison",
    "Course",
    "Coverage",
    "Decision",
    "EvalResult",
    "FloorTruth",
    "Interval",
    "SeedComparison",
    "Start",
    "TwoWayInterval",
    "bootstrap_interval",
    "build_course",
    "compare",
    "compare_seeds",
    "confirmed",
    "confirming",
    "decide",
    "decide_and_confirm",
    "direction",
    "evaluate",
    "evaluate_in_pieces",
    "flight_code",
    "holm",
    "interquartile_mean",
    "interval_over_scenes",
    "join_results",
    "measure_coverage",
    "named_subject",
    "performance_profile",
    "promote",
    "record_comparison",
    "record_decision",
    "record_evaluation",
    "scenes_seen",
    "seed_matrix",
    "take_off",
    "top_down_map",
    "two_way_interval",
    "write_traces",
]
