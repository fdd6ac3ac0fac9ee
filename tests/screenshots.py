"""Screenshots of the pages for people to look at: `python -m tests.screenshots OUT [SCENE]`, one minute.

Shows the explorer in each camera, a collision, an undo, on a phone, in the dark scheme and without WebGL2; then the
dashboard and the replay of a flying training. No test: what a picture should look like is decided by who looks.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import torch

from navi_core.config import EnvConfig, ExplorerConfig
from navi_core.record.home import load_scenes
from navi_core.service.explorer.session import ExplorerSession, SceneChoice
from navi_core.service.recordings import Recording, record_session
from navi_core.service.viewing.broadcast import TrainingBroadcast
from navi_core.service.web.app import served_page
from navi_core.service.web.explore import ExploreShow
from navi_core.service.web.live import LiveShow
from navi_core.service.web.replay import ReplayShow
from navi_core.world import Field, NavigationEnv
from tests.browser import headless_browser

DESK, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
FLYING = "() => Number(document.getElementById('step').dataset.value) > 3"


def explorer(out: Path, scene) -> None:
    session = ExplorerSession([SceneChoice(scene.name, lambda: scene)], ExplorerConfig(), out / "flights")
    with served_page(ExploreShow(session)) as address:
        with headless_browser(webgl=True) as browser:
            page = browser.new_page(viewport=DESK)
            _open(page, address)
            page.screenshot(path=out / "explorer-first.png")
            page.keyboard.press("Enter")
            for key, seconds in (("w", 2.5), ("ArrowLeft", 0.8), ("w", 1.5)):
                _hold(page, key, seconds)
            for number, camera in enumerate(("first", "chase", "orbit", "top"), 1):
                page.keyboard.press(str(number))
                page.wait_for_timeout(700)
                page.screenshot(path=out / f"explorer-{camera}-flown.png")
            page.keyboard.press("3")
            _hold(page, "s", 2.5)
            page.keyboard.press("z")
            page.wait_for_timeout(600)
            page.screenshot(path=out / "explorer-undone.png")
            page.keyboard.press("1")
            page.keyboard.press("g")
            page.keyboard.down("w")
            page.wait_for_function("() => document.getElementById('view3d').dataset.hits > 0", timeout=30_000)
            page.screenshot(path=out / "explorer-hit.png")
            page.keyboard.up("w")
            page.keyboard.press("g")
            page.keyboard.press("Enter")
            page.wait_for_timeout(500)
            page.screenshot(path=out / "explorer-saved.png", full_page=True)
            for name, options in (
                ("phone", {"viewport": PHONE, "has_touch": True}),
                ("dark", {"color_scheme": "dark"}),
            ):
                page = browser.new_page(**options)
                _open(page, address)
                page.screenshot(path=out / f"explorer-{name}.png", full_page=True)
        with headless_browser() as browser:
            page = browser.new_page(viewport=DESK)
            _open(page, address)
            page.screenshot(path=out / "explorer-no-webgl2.png")


def training(out: Path, scene) -> None:
    env = NavigationEnv(Field([scene]), 2, EnvConfig(azimuth_bins=64, elevation_bins=16, stagger=False), seed=1)
    ended, file = threading.Event(), out / "session.navi"

    def fly(watched):
        while not ended.wait(0.1):
            turn = 0.5 * torch.sin(torch.tensor(time.monotonic()))
            watched.step(torch.stack([torch.tensor([0.2, 0.0, 0.0, float(turn)])] * 2))

    with TrainingBroadcast("a training", "ppo") as broadcast, headless_browser(webgl=True) as browser:
        flight = threading.Thread(target=fly, args=(broadcast.watch(env),))
        flight.start()
        try:
            with served_page(LiveShow()) as address:
                page = browser.new_page(viewport=DESK)
                _open(page, address)
                record_session([broadcast.endpoint], file, seconds=5.0)
                page.screenshot(path=out / "dashboard.png", full_page=True)
        finally:
            ended.set()
            flight.join()
        with Recording(file) as recording, served_page(ReplayShow(recording, file.name)) as address:
            page = browser.new_page(viewport=DESK)
            _open(page, address)
            page.wait_for_timeout(2500)
            page.screenshot(path=out / "replay.png", full_page=True)


def _open(page, address: str) -> None:
    page.on("pageerror", lambda error: sys.stderr.write(f"{error}\n"))
    page.goto(address)
    page.wait_for_function(FLYING)
    page.wait_for_timeout(1500)


def _hold(page, key: str, seconds: float) -> None:
    page.keyboard.down(key)
    page.wait_for_timeout(1000 * seconds)
    page.keyboard.up(key)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    shown = load_scenes(sys.argv[2:] or ["apartment:0"], 512)[0]
    explorer(folder, shown)
    training(folder, shown)
