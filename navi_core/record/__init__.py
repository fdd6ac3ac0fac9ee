"""Records of runs: run directory, metric log and outbox, stage timings, hardware profile.

Producers write immutable segment files here; only the pipeline's warehouse opens the database.
"""

from navi_core.record.durable import write_durably
from navi_core.record.home import navi_home, outbox_path
from navi_core.record.measurement import StageTimer, hardware_profile, row_context
from navi_core.record.metric_log import NATURAL_KEYS, MetricLog, TensorBoardWriter
from navi_core.record.run_directory import RunDirectory

__all__ = [
    "NATURAL_KEYS",
    "MetricLog",
    "RunDirectory",
    "StageTimer",
    "TensorBoardWriter",
    "hardware_profile",
    "navi_home",
    "outbox_path",
    "row_context",
    "write_durably",
]
