"""The dashboard of a run in a real headless browser: history, progress, how it ended, charts, another run's curve."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from navi_core.record import RunDirectory, TensorBoardWriter
from navi_core.service.viewing.digest import LAYOUTS
from navi_core.service.viewing.meanings import meaning_of
from navi_core.service.web.app import served_page
from navi_core.service.web.live import LiveShow
from tests.browser import headless_browser
from tests.learn.builders import small_config

RUN = """
import sys, time
from pathlib import Path
from navi_core.record import RunDirectory, TensorBoardWriter
from navi_core.service.viewing.broadcast import TrainingBroadcast
from tests.learn.builders import small_config
from tests.service.web.test_run_page import METRICS

with RunDirectory.open(Path(sys.argv[1]) / "runs", asset="interactive", partition="quick",
                       config=small_config(total_steps=1000)) as run, TrainingBroadcast(run.run_id, "ppo"):
    run.write_status("running", scenes=["house", "office"], parent="v003.pt")
    board = TensorBoardWriter(run.path / "tensorboard")
    for update in range(6):
        board.scalars(100 * (update + 1), METRICS | {"reward_ema": 0.1 * update})
    board.close()
    print(run.run_id, flush=True)
    if sys.stdin.readline().strip() == "finish":
        run.write_status("finished", reason="total_steps")
"""
METRICS = {
    "view_gain": 0.2, "collision_rate": 0.01, "entropy": 3.5, "approx_kl": 0.01, "explained_variance": 0.5,
    "sps": 50.0, "clip_fraction": 0.1, "beta": 0.0,
}  # fmt: skip


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def training(home):
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    process.run_id = process.stdout.readline().strip()
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    "end", ["finished", *(pytest.param(end, marks=pytest.mark.slow) for end in ("stopped", "crashed", "stale"))]
)
def test_history_and_progress_are_shown_on_attach_and_ends_are_told_apart(training, end):
    from playwright.sync_api import expect

    with served_page(LiveShow()) as address, headless_browser() as browser:
        page = browser.new_page()
        page.goto(address)
        # Opened after the sixth update: the whole curve is there.
        chart = page.locator("[data-metric=reward_ema]")
        expect(chart).to_have_attribute("data-value", re.compile("0.5"), timeout=10_000)
        sentence = page.locator("figure:has([data-metric=reward_ema]) canvas").get_attribute("aria-label")
        assert "6 points from decision 100 to decision 600; first 0, last 0.5" in sentence
        expect(page.locator("#progress-text")).to_contain_text("decision 600 of 1,152 · 52 %")
        expect(page.locator("#progress-text")).to_contain_text("about 11 s left")
        expect(page.locator("#run-facts")).to_contain_text("quick")
        expect(page.locator("#run-facts")).to_contain_text("house, office")
        expect(page.locator("#run-facts")).to_contain_text("v003")
        if end == "finished":
            training.communicate("finish\n")
        elif end == "stopped":
            run = RunDirectory.__new__(RunDirectory)
            run.path = Path(os.environ["NAVI_HOME"]) / "runs" / training.run_id
            run.write_status("stopped", reason="SIGINT")
            training.kill()
        else:
            training.send_signal(signal.SIGKILL if end == "crashed" else signal.SIGSTOP)
        texts = {
            "finished": "finished at decision 600",
            "stopped": "stopped at decision 600: run the same command again",
            "crashed": "stopped unexpectedly at decision 600: run the same command again",
            "stale": re.compile(r"no data for \d+ s"),
        }
        expect(page.locator("#phase")).to_have_text(texts[end], timeout=10_000)
        assert page.locator("body").get_attribute("data-phase") == end


def stored(home, seed, values):
    config = small_config(total_steps=1000, seed=seed)
    with RunDirectory.open(home / "runs", asset="interactive", partition="quick", config=config) as run:
        board = TensorBoardWriter(run.path / "tensorboard")
        for number, value in enumerate(values):
            board.scalars(100 * (number + 1), METRICS | {"reward_ema": value})
        board.close()
        run.write_status("finished", scenes=["house"])
    return run.run_id


@pytest.mark.slow
def test_charts_are_read_by_keys_and_another_run_is_overlaid(home):
    from playwright.sync_api import expect

    one, other = stored(home, 1, [0.0, 0.25, 0.5]), stored(home, 2, [0.5, 0.75, 1.0])
    config = small_config(total_steps=1000, seed=3)
    RunDirectory.open(home / "runs", asset="interactive", partition="quick", config=config).close()  # never began
    with served_page(LiveShow()) as address, headless_browser() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        foreign, faults = [], []
        page.on("request", lambda request: foreign.append(request.url) if address[7:] not in request.url else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(address)
        expect(page.locator("#empty-card")).to_be_visible()
        expect(page.locator("#empty-card")).to_contain_text("navi train ppo --preset quick")
        expect(page.locator("#source")).to_contain_text("(refused)")
        page.select_option("#source", f"{one}@stored")
        expect(page.locator("#source option:checked")).to_have_text(f"{one} (finished)")
        expect(page.locator("figure:has([data-metric=reward_ema]) small")).to_contain_text("higher is better")
        expect(page.locator("[data-metric=reward_ema]")).to_have_text("0.5000")
        # Six panels first; the rest is folded.
        assert page.locator("#metrics h3").all_inner_texts() == [
            "Reward", "Coverage", "Collisions", "Entropy and KL", "Value fit", "Speed",
        ]  # fmt: skip
        expect(page.locator("#more-count")).to_have_text("2")
        for canvas in page.locator("#metrics canvas").all():
            assert canvas.get_attribute("role") == "img" and "lowest" in canvas.get_attribute("aria-label")
        figure = page.locator("figure:has([data-metric=reward_ema])")
        figure.locator("canvas").focus()
        page.keyboard.press("ArrowRight")
        expect(figure.locator("output")).to_have_text("decision 300: 0.5000")
        page.keyboard.press("Home")
        expect(figure.locator("output")).to_have_text("decision 100: 0")
        box = figure.locator("canvas").bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
        expect(figure.locator("output")).to_have_text("decision 200: 0.2500")
        page.select_option("#other", other)
        expect(page.locator("#other-name")).to_have_text(f"dashed: {other}")
        label = figure.locator("canvas")
        expect(label).to_have_attribute("aria-label", re.compile(f"{other}: 3 points .* last 1, lowest 0.5"))
        page.locator("#more summary").click()
        expect(page.locator("#more-charts [data-metric=beta]")).to_have_text("0")
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert foreign == [] and faults == []


def test_every_metric_of_an_update_has_a_meaning():
    lacking = [name for name in LAYOUTS["update"] if not meaning_of(name) and name not in ("step", "updates")]
    assert lacking == []
    assert "higher is better" in meaning_of("reward_ema") and "lower is better" in meaning_of("collision_rate")
    assert "better" not in meaning_of("entropy") + meaning_of("of_a_custom_learner"), "neither way is good"


CONTRAST = """
() => {
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const light = (s) => { const [r, g, b] = s.match(/[\\d.]+/g).map((v) => v / (s.startsWith('color') ? 1 : 255));
    return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b); };
  const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!/rgba\\(.*, 0\\)|transparent/.test(c) && !/[/,] *0\\.\\d+\\)$/.test(c)) return c; }
    return 'rgb(255, 255, 255)'; };
  const poor = [];
  for (const e of document.querySelectorAll('body *')) {
    const text = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!text || !e.checkVisibility()) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort();
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${e.tagName}#${e.id} ${e.textContent.trim().slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return poor;
}
"""


@pytest.mark.slow
def test_texts_have_contrast_in_both_schemes(home):
    one = stored(home, 1, [0.0, 0.25, 0.5])
    with served_page(LiveShow()) as address, headless_browser() as browser:
        page = browser.new_page()
        page.goto(address)
        page.select_option("#source", f"{one}@stored")
        page.wait_for_selector("[data-metric=reward_ema]")
        page.evaluate("""() => { document.getElementById('refusal').hidden = false;
            document.getElementById('refusal').textContent = 'refused'; document.body.classList.add('recording');
            document.getElementById('do-record').disabled = true; }""")
        for scheme, mode in itertools.product(("light", "dark"), ("dashboard", "explorer")):
            page.emulate_media(color_scheme=scheme)
            page.evaluate("(mode) => { document.body.dataset.mode = mode; }", mode)
            assert page.evaluate(CONTRAST) == [], (scheme, mode)
