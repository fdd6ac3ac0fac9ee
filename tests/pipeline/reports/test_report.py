"""Report: one self-contained page, and the geometry of its charts."""

import base64
import json
import re

import pytest

from navi_core.record import MetricLog, navi_home, outbox_path
from navi_pipeline.lib.reports.pages import embedded_picture, heading, interval_chart, line_chart, table_part
from navi_pipeline.lib.reports.warehouse_report import run_report
from tests.browser import headless_browser


@pytest.fixture
def filled():
    """A home with two runs, two evaluations with curves and a map, and a hostile name."""
    with MetricLog(outbox_path(), "ppo-quick-1", {"seed": 1, "hardware": "h"}) as log:
        for step in range(0, 4000, 4):
            log.scalars(step, {"reward_ema": step / 4000, "view_gain": 0.5, "collision": float("nan")})
        for subject, auc in (("random", 0.2), ("<script>alert(1)</script>", 0.7)):
            curve = {"step": [0, 50, 100], "c_vis_percent": [1.0, 40.0, 100 * auc]}
            log.row("evaluations", {"evaluation_id": subject, "subject": subject, "c_vis_auc": auc, "split": "test",
                                    "c_vis_auc_low_percent": 100 * auc - 5, "c_vis_auc_high_percent": 100 * auc + 5,
                                    "subject_kind": "policy", "coverage_curve": curve})  # fmt: skip
            log.row("episodes", {"evaluation_id": subject, "subject": subject, "scene": "s", "scene_hash": "h",
                                 "start": 0, "c_vis_auc": auc, "collisions": 3})  # fmt: skip
        seeds = {"profiles": {"thresholds": [10.0, 20.0], "profile_a": [1.0, 0.5], "profile_b": [1.0, 0.0]},
                 "matrices": {"scenes": ["s1", "s2"], "a": [[20.0, 21.0]], "b": [[11.0, 12.0]]}}  # fmt: skip
        for metric, more in (("c_vis_auc", seeds), ("collisions_per_minute", {})):
            log.row("comparisons", {"comparison_id": "c", "metric": metric, "a": "<new>", "b": "old", "low": 4.0,
                                    "mean_difference": 9.0, "high": 14.0, "mean_a": 20.5, "seeds": 5,
                                    "sentence": "<new> is better than old", **more})  # fmt: skip
    maps = navi_home() / "evaluations" / "x.maps.json"
    maps.parent.mkdir(parents=True)
    picture = base64.b64encode(b"a picture").decode()
    maps.write_text(json.dumps({"maps": [f"![scene <1>](data:image/png;base64,{picture})",
                                         embedded_picture(b"a picture", "hall [2]\n\\")]}))  # fmt: skip


def test_report_is_self_contained_and_responsive(filled):
    html = run_report().read_text()
    for title in ("Leaderboard", "Coverage over a flight", "Training", "Flights seen from above", "Worst flights"):
        assert f">{title}</h2>" in html
    assert "width=device-width" in html and "overflow-x" not in html
    sources = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert sources and all(source.startswith(("data:image/png;base64,", "#")) for source in sources)
    assert not re.search(r"https?://|<script|@import|url\(", html)
    assert "&lt;script&gt;" in html and "scene &lt;1&gt;" in html
    assert "hall (2) /" in html
    assert html.count("<svg") >= 4 and len(html) < 200_000


def test_report_draws_comparisons_with_profiles_and_matrix(filled):
    html = run_report().read_text()
    part = html[html.index(">Who is better</h2>") : html.index(">Training</h2>")]
    assert "&lt;new&gt; − old" in part and "&lt;new&gt; is better than old" in part and "<new>" not in part
    assert "&lt;new&gt; against old, c_vis_auc" in part and "share of seeds × scenes above" in part
    # One line a seed: its mean, then its scenes.
    assert ">&lt;new&gt; 0</td>" in part and [">20.5<" in part, ">20<" in part, ">21<" in part] == [True] * 3
    assert part.count("<svg") == 2


def test_headings_are_words_with_units():
    names = {
        "c_vis_auc_percent": "coverage, mean of the flight [%]",
        "path_length_m": "path [m]",
        "collisions_per_minute_median": "collisions / min, median",
        "steps_per_second": "decisions / s",
        "training_source": "training source",
    }
    assert {name: heading(name) for name in names} == names
    table = table_part([{"ok": True, "at": "2026-11-24T18:32:35.869658", "steps": 491520, "none": None, "x": 0.12345}])
    assert [cell in table for cell in (">yes<", ">2026-11-24 18:32<", ">491,520<", ">0.1235<")] == [True] * 4
    assert "none" not in table


def columns(html):
    """Return the verdict's sentence and the first ranking."""
    return re.search(r'class="verdict">(.*?)</p>', html)[1], re.search(r"<table>.*?</table>", html, re.DOTALL)[0]


def test_casual_flights_change_no_headline(filled):
    before = columns(run_report().read_text())
    assert "sees 70.0 % [65.0, 75.0]" not in before[0] and "of the floor" in before[0]
    with MetricLog(outbox_path(), "casual", {"seed": 1, "hardware": "h"}) as log:
        log.row("evaluations", {"evaluation_id": "casual", "subject": "random", "c_vis_auc": 0.99,
                                "subject_kind": "pilot", "eval_config_hash": "another"})  # fmt: skip
        for start in range(2):
            log.row("episodes", {"evaluation_id": "casual", "subject": "random", "scene": "t", "scene_hash": "i",
                                 "start": start, "c_vis_auc": 0.99, "collisions": 0})  # fmt: skip
    html = run_report().read_text()
    assert columns(html) == before and ">Other courses</h2>" in html


@pytest.mark.slow
@pytest.mark.browser
def test_no_table_scrolls_sideways_on_a_screen_or_a_phone(filled):
    file = run_report()
    with headless_browser() as browser:
        page = browser.new_page()
        page.goto(f"file://{file}")
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        wide = "[...document.querySelectorAll('table')].filter((t) => t.scrollWidth > t.parentElement.clientWidth + 1)"
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(f"{wide}.length") == 0


def test_report_of_an_empty_warehouse_names_the_next_command():
    assert "navi train ppo" in run_report().read_text()


def points(svg):
    text = re.search(r'<polyline points="([^"]*)"', svg)[1]
    return [tuple(map(float, pair.split(","))) for pair in text.split()]


def test_line_chart_scales_to_the_range_of_its_values():
    drawn = points(line_chart({"a": ([0, 5, 10], [1.0, 3.0, 2.0])}, x="x", y="y"))
    assert drawn == [(56.0, 278.0), (342.0, 24.0), (628.0, 151.0)]


def test_charts_leave_out_non_finite_points():
    nan = float("nan")
    assert len(points(line_chart({"a": ([0, 1, 2], [1.0, nan, 2.0])}, x="x", y="y"))) == 2
    assert line_chart({"a": ([0], [nan])}, x="x", y="y") == "" and interval_chart([], label="l") == ""
    assert "<polyline" in line_chart({"a": ([3, 3], [1.0, 1.0])}, x="x", y="y")


def test_interval_chart_centres_the_interval_on_its_value():
    svg = interval_chart([("a", 50.0, 40.0, 60.0), ("b", 80.0, 60.0, 100.0)], label="l")
    (x1, x2), (c,) = (
        re.search(r'<line x1="([\d.]+)".*?x2="([\d.]+)"', svg).groups(),
        re.findall(r'cx="([\d.]+)"', svg)[:1],
    )
    assert float(x1) < float(c) < float(x2) and float(c) == pytest.approx((float(x1) + float(x2)) / 2)
