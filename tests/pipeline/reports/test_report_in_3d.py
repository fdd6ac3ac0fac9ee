"""The report's 3-D view: one file that shows scene and flights offline."""

from __future__ import annotations

import json
import os

import pytest

from navi_core.record import navi_home
from navi_core.service.viewing.meshes import store_mesh
from navi_pipeline.lib.reports.view3d import flights_in_3d
from navi_pipeline.lib.reports.warehouse_report import run_report
from tests.browser import headless_browser

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def flown(apartments):
    """A home whose newest evaluation flew two subjects; an earlier one has pictures alone."""
    folder = navi_home() / "evaluations"
    folder.mkdir(parents=True)
    low, high = apartments[0].mesh_bounds
    line = [
        [float(low[0] + t * (high[0] - low[0])), 1.2, float(low[2] + t * (high[2] - low[2]))] for t in (0.3, 0.5, 0.7)
    ]
    flight = {"scene": HOSTILE, "mesh": store_mesh(apartments[0]), "paths": {"policy": line, HOSTILE: line[:2]}}
    (folder / "old.maps.json").write_text(json.dumps({"maps": []}))
    os.utime(folder / "old.maps.json", (1, 1))
    (folder / "new.maps.json").write_text(json.dumps({"maps": [], "flights": [flight]}))
    return flight


def test_report_without_stored_scenes_has_no_view(flown):
    (navi_home() / "meshes" / f"{flown['mesh']}.mesh").unlink()
    assert flights_in_3d(navi_home()) == []


@pytest.mark.browser
def test_report_shows_flights_in_3d_without_a_server(flown):
    file = run_report()
    html = file.read_text()
    assert "Flights in 3-D" in html and len(html) < 250_000 and HOSTILE not in html
    with headless_browser(webgl=True) as browser:
        page = browser.new_page(viewport={"width": 900, "height": 700})
        faults, asked = [], []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_function("() => document.querySelector('[data-flights]').view?.scene?.mesh")
        assert page.locator(".view3d-legend li").all_inner_texts() == ["policy", HOSTILE]
        picture = page.locator(".view3d-canvas")
        before = picture.screenshot()
        picture.focus()
        page.keyboard.press("ArrowLeft")
        page.wait_for_timeout(300)
        assert picture.screenshot() != before
        assert faults == [] and all(url.startswith(("file:", "data:", "blob:")) for url in asked)
