"""Large warehouses: duplicate keys are counted in pieces, and charts show the best rows."""

import pytest

from navi_core.record import MetricLog, navi_home
from navi_core.record.metric_log import UNINDEXED_TABLES
from navi_pipeline.defs.resources import resources_of
from navi_pipeline.defs.warehouse import every_row_counts_once
from navi_pipeline.lib.evaluation.scoring import worth_drawing
from navi_pipeline.lib.warehouse.database import count_duplicate_keys, open_database
from navi_pipeline.lib.warehouse.warehouse import Warehouse


@pytest.fixture
def warehouse():
    made = Warehouse()
    for run in ("a", "b"):
        with MetricLog(made.outbox, run, {}) as log:
            for step in range(50):
                log.scalars(step, {"x": 1.0, "y": 2.0})
    made.ingest()
    return made


def doubled(warehouse):
    with open_database(warehouse.database) as connection:
        connection.execute("insert into metrics select * from metrics where run_id = 'a' and step < 3")
        connection.execute("insert into metrics select * replace (null as run_id) from metrics where step = 40")
        connection.execute("insert into metrics select * from metrics where run_id is null and name = 'x'")
    warehouse.publish()


@pytest.mark.parametrize("rows", [1_000_000, 200, 7])
def test_duplicate_count_does_not_depend_on_piece_size(warehouse, rows):
    with warehouse.reader() as ask:
        assert [count_duplicate_keys(ask, table, piece_rows=rows) for table in UNINDEXED_TABLES] == [0] * len(
            UNINDEXED_TABLES
        )
    doubled(warehouse)
    with warehouse.reader() as ask:
        # 6 of run a; without a run x and y of two runs each, and x twice more.
        assert count_duplicate_keys(ask, "metrics", piece_rows=rows) == 6 + 2 + 2


def test_row_check_fails_on_duplicate_keys(warehouse):
    assert every_row_counts_once(resources_of(str(navi_home()))["warehouse"]).passed
    doubled(warehouse)
    assert not every_row_counts_once(resources_of(str(navi_home()))["warehouse"]).passed


def test_worth_drawing_keeps_the_best_forty_and_all_pilots():
    rows = [{"subject": f"v{n}", "kind": "pilot" if n in (5, 100, 364) else "policy"} for n in range(365)]
    drawn = [row["subject"] for row in worth_drawing(rows)]
    assert drawn == [*(f"v{n}" for n in range(40)), "v100", "v364"]
