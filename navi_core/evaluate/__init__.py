"""Evaluation without learning: frozen starts, true coverage, paired statistics, gated promotion."""

from navi_core.evaluate.comparison import LOWER_IS_BETTER, Comparison, compare
from navi_core.evaluate.course import Course, Start, build_course
from navi_core.evaluate.coverage import Coverage, FloorTruth, measure_coverage
from navi_core.evaluate.maps import top_down_map
from navi_core.evaluate.promotion import Decision, decide, promote
from navi_core.evaluate.protocol import evaluate
from navi_core.evaluate.recording import record_decision, record_evaluation
from navi_core.evaluate.result import EvalResult
from navi_core.evaluate.statistics import Interval, bootstrap_interval, interquartile_mean
from navi_core.evaluate.traces import write_traces

__all__ = [
    "LOWER_IS_BETTER",
    "Comparison",
    "Course",
    "Coverage",
    "Decision",
    "EvalResult",
    "FloorTruth",
    "Interval",
    "Start",
    "bootstrap_interval",
    "build_course",
    "compare",
    "decide",
    "evaluate",
    "interquartile_mean",
    "measure_coverage",
    "promote",
    "record_decision",
    "record_evaluation",
    "top_down_map",
    "write_traces",
]
