"""Comparison of runs reads runs, curves, costs and evaluations from the warehouse."""

import pytest
from typer.testing import CliRunner

from navi_core.cli import pages
from navi_core.cli.main import build_app
from navi_core.errors import RunError
from navi_core.evaluate import record_evaluation
from navi_core.record import MetricLog, outbox_path
from navi_core.service.web.app import served_page
from navi_core.service.web.live import LiveShow
from navi_pipeline.lib.reports.compared_runs import compared_runs
from tests.browser import headless_browser
from tests.evaluate.conftest import made_result

LOW = [[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]]


def record_run(run_id, rate, gain):
    """Rows of a training of 1,000 updates and of an evaluation of its checkpoint."""
    with MetricLog(outbox_path(), run_id, {}) as log:
        for step in range(1, 1001):
            log.scalars(step, {"reward_ema": step * rate, "learning_rate": rate})
        log.row("runs", {"status": "finished", "step": 1000, "cpu_seconds": 2.5, "wall_time_seconds": 2.0,
                         "config": {"seed": 0, "ppo": {"learning_rate": rate}}})  # fmt: skip
    result = made_result(run_id, [[x + gain for x in row] for row in LOW], weights=run_id)
    result.summary.update(training_run_id=run_id, evaluation_id=f"evaluation-{run_id}")
    record_evaluation(result)


def test_compared_runs_of_a_home_are_read_from_the_warehouse():
    record_run("interactive-quick-aaaa", 1.0, 0.0)
    record_run("interactive-quick-bbbb", 0.5, 5.0)
    found = compared_runs(["interactive-quick-aaaa", "bbbb"])
    assert [each["status"] for each in found["runs"]] == ["finished", "finished"]
    assert found["settings"] == [{"setting": "ppo.learning_rate", "values": [1.0, 0.5]}]
    assert [row["values"] for row in found["cost"]] == [[1000, 1000], [2.5, 2.5], [2.0, 2.0]]
    line = found["curves"]["reward_ema"]["lines"][1]
    assert len(line["steps"]) == len(line["values"]) <= 400 and (line["steps"][-1], line["values"][-1]) == (1000, 500.0)
    assert set(found["curves"]) == {"reward_ema"}
    coverage = found["intervals"][0]
    assert (coverage["metric"], coverage["course_name"], coverage["better"]) == ("c_vis_auc", "explore-3x10x1000", True)
    assert coverage["mean_difference"] == pytest.approx(5.0)


def test_a_name_of_no_run_or_of_several_is_refused_with_the_next_command():
    record_run("interactive-quick-aaaa", 1.0, 0.0)
    record_run("interactive-quick-bbbb", 1.0, 0.0)
    with pytest.raises(RunError, match=r"did you mean 'interactive-quick-bbbb'\? see them with: navi runs list"):
        compared_runs(["aaaa", "interactive-quick-bbcb"])
    with pytest.raises(RunError, match="the beginning or the ending of 2 runs"):
        compared_runs(["aaaa", "interactive"])


def test_runs_compare_prints_settings_cost_curves_and_the_verdict_and_writes_a_page(tmp_path):
    record_run("interactive-quick-aaaa", 1.0, 0.0)
    record_run("interactive-quick-bbbb", 0.5, 5.0)
    page = tmp_path / "page.html"
    done = CliRunner().invoke(build_app(), ["runs", "compare", "aaaa", "bbbb", "--page", str(page)])
    assert done.exit_code == 0, done.output
    for shown in ("ppo.learning_rate", "1,000 ▁▁▂▃▃▄▅▅▆▇██", "bbbb is better than aaaa in c_vis_auc", "CPU [s]"):
        assert shown in done.stdout, done.stdout
    assert "bbbb is better than aaaa" in page.read_text() and page.read_text().count("<polyline") == 2


@pytest.mark.browser
def test_page_of_a_comparison_begins_with_the_verdict_and_fits_the_screen():
    """The dashboard serves what `--page` writes; `navi` registers it."""
    record_run("interactive-quick-aaaa", 1.0, 0.0)
    record_run("interactive-quick-bbbb", 0.5, 5.0)
    build_app()
    with served_page(LiveShow(discover=False, comparison=pages.comparison)) as address, headless_browser() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        foreign, faults = [], []
        page.on("request", lambda request: foreign.append(request.url) if address[7:] not in request.url else None)
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.goto(f"{address}/compare?run=interactive-quick-aaaa&run=interactive-quick-bbbb")
        verdict = page.locator(".verdict").inner_text()
        assert "interactive-quick-bbbb is better than interactive-quick-aaaa in c_vis_auc" in verdict
        charts = page.locator("svg[role=img]").all()
        assert len(charts) == 2 and "interactive-quick-bbbb: 0" in charts[1].get_attribute("aria-label")
        assert page.locator("h2").all_inner_texts() == [
            "On the same starts", "Curves", "Last values", "Settings that differ", "Cost",
        ]  # fmt: skip
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert foreign == [] and faults == []
