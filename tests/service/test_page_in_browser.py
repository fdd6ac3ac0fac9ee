"""The page as people use it, in a real headless browser."""

from __future__ import annotations

import numpy as np
import pytest

from navi_core.demos import load_demonstration
from navi_core.service.explorer import ExplorerSession, SceneChoice
from navi_core.service.web import served_page
from navi_core.service.web.explore import ExploreShow
from tests.browser import headless_browser
from tests.service.test_explorer import SMALL

pytestmark = pytest.mark.browser
PHONE = {"width": 390, "height": 844}


def test_a_flight_by_key_presses_makes_a_demonstration(apartments, tmp_path):
    """Record, fly ahead, turn, take back, save; on a phone nothing is wider than the screen."""
    from playwright.sync_api import expect

    choices = [SceneChoice(scene.name, lambda scene=scene: scene) for scene in apartments]
    session = ExplorerSession(choices, SMALL, tmp_path / "flights")
    with served_page(ExploreShow(session)) as address, headless_browser() as browser:
        page = browser.new_page()
        foreign = []
        page.on("request", lambda request: foreign.append(request.url) if address[7:] not in request.url else None)
        page.goto(address)
        expect(page.locator("#phase")).to_have_text("flying")
        page.keyboard.press("Enter")
        expect(page.locator("#do-record")).to_have_text("Recording")
        page.keyboard.down("w")
        page.wait_for_timeout(600)
        page.keyboard.up("w")
        page.keyboard.down("ArrowLeft")
        page.wait_for_timeout(500)
        page.keyboard.up("ArrowLeft")
        page.keyboard.press("Space")
        expect(page.locator("#phase")).to_have_text("paused")
        page.wait_for_timeout(150)
        shown = page.locator("#recorded").inner_text()
        page.keyboard.press("Enter")
        expect(page.locator("#notice")).to_contain_text("saved")
        expect(page.locator("#scenes tr.here td").nth(1)).to_have_text("1")
        page.set_viewport_size(PHONE)
        page.wait_for_timeout(150)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert foreign == []
    demo = load_demonstration(session.saved[0])
    assert shown.startswith(f"{len(demo.actions)} decisions")
    assert demo.actions[:, 0].max() == np.float32(0.35) and demo.actions[:, 3].max() == np.float32(0.35)
    assert not demo.actions[:, 1:3].any()
