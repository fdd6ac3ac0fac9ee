"""The 3-D view of the pages: mesh, cameras, assisted flight, and what is shown where WebGL2 is missing."""

from __future__ import annotations

import gzip
import math
import re
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from navi_core.config import EnvConfig, ExplorerConfig
from navi_core.demos import load_demonstration
from navi_core.record.home import load_scenes
from navi_core.scenes.display_mesh import display_mesh
from navi_core.service.explorer.session import ExplorerSession, SceneChoice
from navi_core.service.viewing.broadcast import TrainingBroadcast
from navi_core.service.viewing.meshes import (
    key_numbers,
    key_of,
    mesh_key,
    pack_mesh,
    store_mesh,
    stored_mesh,
    unpack_mesh,
)
from navi_core.service.web.app import STATIC, served_page
from navi_core.service.web.explore import ExploreShow
from navi_core.service.web.live import LiveShow
from navi_core.world import Field, NavigationEnv
from navi_core.world.floor.overhead import COLOURS
from tests.browser import headless_browser
from tests.service.web.page_client import page_client, unpacked
from tests.service.web.test_explorer import SMALL
from tests.service.web.test_watching import until

HOUSE = Path(__file__).parents[4] / "shared/scenes/small_house.glb"
PIXELS = """
() => {
  const { view } = document.getElementById("view3d"), { gl } = view.scene, { width, height } = view.canvas;
  view.draw();
  const data = new Uint8Array(4 * width * height);
  gl.readPixels(0, 0, width, height, gl.RGBA, gl.UNSIGNED_BYTE, data);
  let sum = 0;
  for (let k = 0; k < data.length; k++) sum = (sum * 31 + data[k]) >>> 0;
  return [sum, new Set(data).size];
}
"""
MARKS = """
async () => {
  const { COLOURS, casingOf } = await import("/view3d.js");
  return COLOURS.map((colour) => [colour, casingOf(colour)]);
}
"""
MESH = "() => document.getElementById('view3d').view?.scene?.mesh"


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """The small house at 512, compiled once."""
    if not HOUSE.exists():
        pytest.skip(f"{HOUSE} is not there")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NAVI_HOME", str(tmp_path_factory.mktemp("home")))
        return load_scenes([str(HOUSE)], 512)[0]


@contextmanager
def view_page(scene, folder=None, config=SMALL, *, webgl=True, **options):
    """Yield an explorer's session and its open page."""
    session = ExplorerSession([SceneChoice(scene.name, lambda: scene)], config, folder)
    with served_page(ExploreShow(session)) as address, headless_browser(webgl=webgl) as browser:
        page = browser.new_page(**options)
        page.address, page.faults, page.foreign = address, [], []
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on("request", lambda r: page.foreign.append(r.url) if not r.url.startswith((address, "data:")) else None)
        page.goto(address)
        page.wait_for_function("() => document.getElementById('step').dataset.value > 1")
        if webgl:
            page.wait_for_function(MESH)
        yield session, page
        assert page.faults == [] and page.foreign == []


def test_display_mesh_keeps_corners_to_its_step_and_its_limit(apartments):
    scene = apartments[0]
    mesh = display_mesh(scene)
    corners = mesh.vertices[mesh.faces]
    assert mesh.before == len(scene.triangles) and len(mesh.faces) <= mesh.before
    ours, theirs = (np.unique(np.round(part.reshape(-1, 3), 2), axis=0) for part in (corners, scene.triangles))
    assert len(ours) == pytest.approx(len(theirs), rel=0.02)
    assert set(mesh.semantic.tolist()) == set(scene.triangle_semantic.tolist())
    fewer = display_mesh(scene, 200)
    assert 20 < len(fewer.faces) <= 200 and fewer.step > mesh.step
    span = [part.max(axis=0) - part.min(axis=0) for part in (mesh.vertices, fewer.vertices)]
    np.testing.assert_allclose(*span, atol=2 * fewer.step)


def test_mesh_message_is_undone_to_the_same_triangles(apartments):
    mesh, again = display_mesh(apartments[0]), unpack_mesh(pack_mesh(apartments[0]))
    for name in ("faces", "positions", "semantic", "origin"):
        np.testing.assert_array_equal(getattr(again, name), getattr(mesh, name))
    assert (again.step, again.before) == (mesh.step, mesh.before)


def test_mesh_is_served_compressed_and_kept_by_browsers(apartments):
    key = store_mesh(apartments[0])
    assert key == mesh_key(apartments[0]) and key_of(key_numbers(key)) == key and key_of({}) == ""
    assert stored_mesh("../../x") is None and stored_mesh("0" * 24) is None
    with served_page(ExploreShow(ExplorerSession([SceneChoice("a", lambda: apartments[0])], SMALL))) as address:
        request = urllib.request.Request(f"{address}/scene/{key}.mesh", headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request) as answer:
            assert answer.headers["Content-Encoding"] == "gzip" and "immutable" in answer.headers["Cache-Control"]
            assert answer.read() == stored_mesh(key)
        with urllib.request.urlopen(f"{address}/scene/{key}.mesh") as answer:
            assert unpacked(answer.read())["name"] == apartments[0].name
        with page_client(address) as client:
            assert client.until("scene")["mesh"] == key
            assert client.until("map")["floor"] == pytest.approx(0.0, abs=0.02)


@pytest.mark.slow
def test_watched_training_announces_a_stored_mesh(apartments):
    env = NavigationEnv(Field(apartments), 1, EnvConfig(azimuth_bins=16, elevation_bins=8, stagger=False), seed=1)
    with TrainingBroadcast("run", "ppo") as broadcast, served_page(LiveShow()) as address, page_client(address) as page:
        watched = broadcast.watch(env)
        until(lambda: broadcast.watched, 20.0)
        key = mesh_key(apartments[int(env.counters["scene"][0])])
        scenes = []
        for _ in range(60):
            watched.step(torch.zeros(1, 4))
            time.sleep(0.05)
            scenes.append(page.messages.get("scene", {}).get("mesh"))
            page._socket.ping()
            page.until("frame")
            if key in scenes:
                break
        assert key in scenes and stored_mesh(key)


def test_assisted_flight_touches_nothing(apartments):
    """Held random commands at full speed, which without the assist collide again and again."""
    touched = {}
    for assist in (False, True):
        session = ExplorerSession([SceneChoice("a", lambda: apartments[0])], SMALL)
        session.assist = assist
        rng, touched[assist], slowed = np.random.default_rng(0), 0, []
        for _ in range(60):
            command = rng.uniform(-1, 1, 4) * (1, 0.3, 0.6, 0.5)
            for _ in range(5):
                session.fly(command)
                touched[assist] += session.last["collided"]
                slowed.append(session.last["slowed"])
        assert session.contacts() == touched[assist]
        session.undo(300)
        assert session.contacts() == 0
    assert touched[False] > 20 and touched[True] == 0
    assert 0.2 < np.mean(slowed) < 1.0


def contrast(a, b):
    """Return the contrast ratio of two sRGB colours in [0, 1] (WCAG 2)."""
    curve = [[x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in colour[:3]] for colour in (a, b)]
    low, high = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in curve)
    return (high + 0.05) / (low + 0.05)


def changed(page, before):
    """Wait until the view's pixels have changed; return their checksum."""
    found = []
    until(lambda: found.append(page.evaluate(PIXELS)[0]) or found[-1] != before, 10.0)
    return found[-1]


@pytest.mark.slow
@pytest.mark.browser
def test_view_is_first_person_and_turns_by_mouse_and_keys(apartments, tmp_path):
    """WebGL2 shows the mesh at once; a page weighs little; undo shows a ghost, a collision flashes."""
    from playwright.sync_api import expect

    weight = sum(len(gzip.compress(file.read_bytes())) for file in STATIC.iterdir())
    assert weight <= 250_000
    with view_page(apartments[0], tmp_path / "flights", viewport={"width": 800, "height": 600}) as (session, page):
        host = page.locator("#view3d")
        expect(host).to_have_attribute("data-camera", "first")
        page.keyboard.down("w")
        page.wait_for_timeout(700)
        page.keyboard.up("w")
        page.keyboard.press("z")
        page.wait_for_function("() => Number(document.getElementById('view3d').dataset.ghost) > 1")
        page.keyboard.press("Space")
        expect(page.locator("#phase")).to_have_text("paused")
        seen, shades = page.evaluate(PIXELS)
        assert shades > 20, "a picture, not one colour"
        expect(page.locator(".view3d-sentence")).to_contain_text("facing")
        for camera, key in (("chase", "2"), ("orbit", "3"), ("top", "4")):
            page.keyboard.press(key)
            expect(host).to_have_attribute("data-camera", camera)
            seen = changed(page, seen)
        page.keyboard.press("3")
        seen = changed(page, seen)
        box = page.locator(".view3d-canvas").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + 80, y + 30, steps=3)
        page.mouse.up()
        seen, pose = changed(page, seen), session.pose()
        # The canvas has the focus: arrow keys turn the camera and fly nothing.
        for key in ("ArrowLeft", "ArrowUp", "+"):
            page.keyboard.press(key)
            seen = changed(page, seen)
        assert session.pose() == pose
        expect(page.locator(".view3d-canvas")).to_have_attribute("aria-label", re.compile("orbit camera"))
        # Without the assist the drone runs into the wall ahead.
        page.keyboard.press("1")
        page.keyboard.press("g")
        page.keyboard.press("Space")
        expect(page.locator("#assist")).not_to_be_checked()
        page.keyboard.down("w")
        page.wait_for_function("() => document.getElementById('view3d').dataset.hits > 0", timeout=20_000)
        expect(page.locator(".view3d-hit")).to_contain_text("Touched")
        page.keyboard.up("w")
        for colour, casing in page.evaluate(MARKS):
            assert contrast(colour, casing) >= 3
        page.check("#sharp")
        page.wait_for_function("() => document.getElementById('panorama-facts').textContent.startsWith('32')")
        page.reload()
        expect(page.locator("#sharp")).to_be_checked()


def test_pages_know_the_colours_of_maps():
    script = "".join((STATIC / name).read_text() for name in ("map.js", "view3d.js"))
    known = re.findall(r'[{,] "?([a-z ]+)"?: \[(\d+), (\d+), (\d+)\]', script)
    found = {name.replace("seen floor", "seen"): tuple(map(int, colour)) for name, *colour in known}
    assert found.items() >= COLOURS.items()
    assert f"SEEN = [{', '.join(map(str, COLOURS['seen']))}]" in script


@pytest.mark.browser
def test_panorama_and_map_are_read_by_keys_and_every_canvas_has_words(apartments):
    from playwright.sync_api import expect

    with view_page(apartments[0], webgl=False) as (session, page):
        page.keyboard.press("Space")
        expect(page.locator("#phase")).to_have_text("paused")
        pose = session.pose()
        page.focus("#panorama-over")
        for key in ("ArrowLeft", "ArrowUp"):
            page.keyboard.press(key)
        expect(page.locator("#reading")).to_have_text(re.compile("° left, .* up"))
        page.focus("#map")
        page.keyboard.press("ArrowRight")
        expect(page.locator("#map-reading")).to_have_text(re.compile(r"x .*: (seen )?floor, 0\.\d m from the drone"))
        page.keyboard.press("Escape")
        page.keyboard.press("Space")
        expect(page.locator("#phase")).to_have_text("flying")
        assert session.pose() == pose
        silent = page.evaluate("""() => [...document.querySelectorAll("canvas")].filter((canvas) =>
          canvas.offsetWidth && canvas.ariaHidden !== "true" && !(canvas.ariaLabel && canvas.tabIndex === 0)
        ).map((canvas) => canvas.id)""")
        assert silent == []


@pytest.mark.slow
@pytest.mark.browser
def test_page_without_webgl2_shows_points_and_says_why(apartments):
    from playwright.sync_api import expect

    with view_page(apartments[0], webgl=False) as (_, page):
        expect(page.locator(".view3d-note")).to_contain_text("no WebGL2")
        expect(page.locator("#view3d")).to_have_attribute("data-camera", "orbit")
        picture = page.locator(".view3d-canvas")
        page.keyboard.press("Space")
        expect(page.locator("#phase")).to_have_text("paused")
        before = picture.screenshot()
        picture.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(200)
        assert picture.screenshot() != before


@pytest.mark.slow
@pytest.mark.browser
def test_small_house_is_drawn_20_times_a_second_without_a_graphics_card(house):
    """At 640 × 400 by SwiftShader, in every camera; frames come at 10 Hz, and the page is painted within a second."""
    with view_page(house, config=ExplorerConfig(), viewport={"width": 1280, "height": 800}) as (_, page):
        painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        step = "Number(document.getElementById('step').dataset.value)"
        first = page.evaluate(step)
        page.wait_for_timeout(4000)
        rate = (page.evaluate(step) - first) / 4
        page.keyboard.press("Space")
        speeds = page.evaluate("""async () => {
          const { view } = document.getElementById("view3d"), found = {}, one = new Uint8Array(4), { gl } = view.scene;
          Object.assign(view.stage.style, { width: "640px", height: "400px", aspectRatio: "auto" });
          for (const name of ["first", "chase", "orbit", "top"]) {
            view.choose(name);
            found[name] = 0;
            for (let attempt = 0; attempt < 3; attempt++) {
              const begun = performance.now();
              let count = 0;
              for (; performance.now() - begun < 700; count++) {
                view.sharpness = 1;
                view.draw();
                gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, one);
              }
              found[name] = Math.max(found[name], (1000 * count) / (performance.now() - begun));
              await new Promise((done) => setTimeout(done, 50));
            }
          }
          return [found, view.canvas.width, view.canvas.height];
        }""")
        found = f"frames a second {speeds}, decisions a second {rate}, first paint {painted} ms"
        assert speeds[1:] == [640, 400] and min(speeds[0].values()) >= 20, found
        assert rate >= 9.5 and painted <= 1000, found


@pytest.mark.slow
@pytest.mark.browser
def test_newcomer_records_three_rooms_of_the_small_house_and_clones_them(house, tmp_path):
    """By key presses alone, within three minutes, touching nothing; the steering looks at the map as a person does."""
    from playwright.sync_api import expect
    from typer.testing import CliRunner

    from navi_core.cli.main import build_app

    begun, touched, folder = time.monotonic(), 0, tmp_path / "flights"
    with view_page(house, folder, ExplorerConfig()) as (session, page):
        # Below the lintels of the doors.
        page.keyboard.down("ArrowDown")
        until(lambda: session.pose()[1] < 1.3, 20.0)
        page.keyboard.up("ArrowDown")
        page.wait_for_timeout(500)
        way_to = _ways(session)
        for number, target in enumerate([(6.0, -2.5), (0.5, 2.5), (-6.0, 1.5)]):
            page.keyboard.press("Enter")
            expect(page.locator("#do-record")).to_have_text("Recording")
            touched += _fly_by_keys(session, page, way_to(target))
            page.keyboard.press("Enter")
            expect(page.locator("#scenes tr.here td").nth(1)).to_have_text(str(number + 1))
        expect(page.locator("#clone-command")).to_contain_text("navi train bc --demos")
    seconds = time.monotonic() - begun
    assert touched == 0 and seconds <= 180, f"{touched} touched in {seconds:.0f} s"
    assert len({path.name for path in session.saved}) == 3
    assert all(len(load_demonstration(path).actions) > 20 for path in session.saved)
    arguments = ["bc", "--demos", str(folder), "--set", "bc.epochs=1", "--set", "bc.sequences=2"]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 0, result.output


def _ways(session):
    """Return a function to the way points (x, z) to a target on the free floor at the drone's height."""
    floor, y = session.env.floors[0], session.pose()[1]
    layer = int((y - floor.corner[1]) / floor.cell)
    free = floor.free[:, layer].copy()
    i, k = np.nonzero(free)
    points = floor.corner + (np.stack([i, np.full(len(i), layer), k], 1) + 0.5) * floor.cell
    scene = torch.zeros(len(points), dtype=torch.int64)
    room = session.env.field.distance(torch.from_numpy(points.astype(np.float32)), scene).numpy()
    free[i, k] = room > 0.3

    def way_to(target):
        cell = [tuple(int((v - floor.corner[a]) / floor.cell) for v, a in zip(p, (0, 2))) for p in
                (session.pose()[::2], target)]  # fmt: skip
        nearest = [min(zip(*np.nonzero(free)), key=lambda c, at=at: math.dist(c, at)) for at in cell]
        reached, edge = {nearest[1]: None}, [nearest[1]]
        while edge and nearest[0] not in reached:
            following = []
            for a, b in edge:
                for step in ((a + 1, b), (a - 1, b), (a, b + 1), (a, b - 1)):
                    if (
                        0 <= step[0] < free.shape[0]
                        and 0 <= step[1] < free.shape[1]
                        and free[step]
                        and step not in reached
                    ):
                        reached[step] = (a, b)
                        following.append(step)
            edge = following
        at, way = nearest[0], []
        while at is not None:
            way.append([floor.corner[a] + (v + 0.5) * floor.cell for v, a in zip(at, (0, 2))])
            at = reached[at]
        return way

    return way_to


def _fly_by_keys(session, page, way):
    """Hold W and turn towards a point ahead on the way; return the number of collisions."""
    held, touched, version, deadline = set(), 0, 0, time.monotonic() + 55

    def hold(*keys):
        for key in held - set(keys):
            page.keyboard.up(key)
        for key in set(keys) - held:
            page.keyboard.down(key)
        held.clear()
        held.update(keys)

    while time.monotonic() < deadline:
        x, _, z, yaw = session.pose()
        nearest = min(range(len(way)), key=lambda n: math.dist(way[n], (x, z)))
        goal = way[min(len(way) - 1, nearest + max(1, int(0.7 / session.env.floors[0].cell)))]
        if math.dist(way[-1], (x, z)) < 1.2:
            break
        off = math.remainder(math.atan2(x - goal[0], z - goal[1]) - yaw, 2 * math.pi)
        turn = ("ArrowLeft",) if off > 0.15 else ("ArrowRight",) if off < -0.15 else ()
        hold(*turn, *(("w",) if abs(off) < 0.6 else ()))
        page.wait_for_timeout(60)
        if len(session.trajectory) != version:
            version, touched = len(session.trajectory), touched + session.last["collided"]
    hold()
    assert math.dist(way[-1], session.pose()[::2]) < 2.0, "the room was not reached"
    return touched
