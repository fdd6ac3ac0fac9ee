"""Rows of sweeps: numbers of every cell, and cells that failed with their reason."""

import pytest

from navi_core.errors import RecordError
from navi_pipeline.lib.records import BenchmarkLog
from navi_pipeline.lib.warehouse.warehouse import Warehouse


def test_cells_record_values_or_their_failure_reason():
    for speed in (100.0, 110.0):
        with BenchmarkLog("resolution_sweep", config_hash="c") as log:
            log.cell("256x48", {"steps_per_second": (speed, "1/s")}, seed=3, parameters={"azimuth_bins": 256})
            log.cell("768x144", {}, outcome="out_of_memory", detail="the cell's 2 GiB were not enough")
    warehouse = Warehouse()
    assert warehouse.ingest().quarantined == {}
    rows = warehouse.query("select * from benchmarks order by recorded_at, cell")
    assert rows["value"].tolist()[::2] == [100.0, 110.0] and rows["outcome"].tolist()[1::2] == ["out_of_memory"] * 2
    assert rows["run_id"].nunique() == 2 and rows["seed"].tolist()[0] == 3
    assert rows["hardware"].notna().all() and rows["value"].isna().tolist() == [False, True] * 2


@pytest.mark.parametrize(("values", "outcome", "word"), [({}, "ok", "no value"), ({}, "oom", "allowed: ok")])
def test_cell_without_values_needs_a_known_failure_outcome(values, outcome, word):
    with pytest.raises(RecordError, match=word):
        BenchmarkLog("b").cell("c", values, outcome=outcome)
