"""HTML reports: self-contained pages with escaped text."""

from navi_core.record import navi_home
from navi_pipeline.lib.reports.pages import (
    embedded_charts,
    html_page,
    reports_folder,
    table_part,
    text_part,
    write_page,
)


def test_html_page_escapes_text_and_is_self_contained():
    parts = [text_part("a < b"), table_part([{"x": 1.23456, "y": "<script>"}, {"x": None}])]
    page = html_page("t & u", parts)
    assert "<script>" not in page and "a &lt; b" in page and "<title>t &amp; u</title>" in page
    row = '<td data-label="x">{}</td><td data-label="y">{}</td>'
    assert row.format("1.235", "&lt;script&gt;") in page and row.format("", "") in page
    assert "http" not in page
    assert embedded_charts([], "c") == "*nothing to draw*"


def test_a_report_of_the_same_name_is_replaced():
    first, second = (write_page(reports_folder() / "night.html", title, []) for title in ("one", "two"))
    assert first == second == navi_home() / "reports" / "night.html" and "two" in second.read_text()
    assert "no rows" in table_part([])
