"""Policy evaluation on frozen starts: ground-truth coverage, paired statistics, gated promotion."""

from navi_core.evaluate.comparison import Comparison, SeedComparison, compare, compare_seeds, seed_matrix
from navi_core.evaluate.flight.course import Course, Start, build_course
from navi_core.evaluate.flight.subjects import Autopilot, named_subject, take_off
from navi_core.evaluate.metrics.coverage import Coverage, FloorTruth, measure_coverage
from navi_core.evaluate.model_card import write_model_card
from navi_core.evaluate.pictures import top_down_map, write_traces
from navi_core.evaluate.promotion import (
    Decision,
    confirmed,
    confirming,
    decide,
    decide_and_confirm,
    promote,
    scenes_seen,
)
from navi_core.evaluate.protocol import evaluate, evaluate_in_pieces, join_results
from navi_core.evaluate.recording import record_comparison, record_decision, record_evaluation
from navi_core.evaluate.result import EvalResult, direction, flight_code
from navi_core.evaluate.statistics import (
    Interval,
    TwoWayInterval,
    bootstrap_interval,
    holm,
    interquartile_mean,
    interval_over_scenes,
    percentage_interval,
    performance_profile,
    two_way_interval,
)

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
    "percentage_interval",
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
    "write_model_card",
    "write_traces",
]
