"""The explorer's orders as a page sends them, without a browser."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import urllib.request
from contextlib import suppress

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from navi_core.demos import import_minari, load_demonstration
from navi_core.errors import DemoError
from navi_core.service.explorer.session import ExplorerSession, SceneChoice
from navi_core.service.web import app, connections
from navi_core.service.web.app import listen, serve_page, served_page
from navi_core.service.web.explore import ExploreShow
from tests.service.web.page_client import page_client, unpacked
from tests.service.web.test_explorer import SMALL


@pytest.fixture
def page(apartments, tmp_path):
    """An open page of an explorer of two scenes; its session is `page.session`."""
    choices = [SceneChoice(scene.name, lambda scene=scene: scene) for scene in apartments]
    session = ExplorerSession(choices, SMALL, tmp_path / "flights")
    with served_page(ExploreShow(session)) as address, page_client(address) as client:
        client.session, client.address = session, address
        yield client


def test_a_flight_is_recorded_saved_and_exported_as_minari(page, tmp_path):
    pytest.importorskip("minari", reason="Minari is not installed (pip install -e '.[minari]')")
    page.order(do="record")
    page.order(do="command", axes=[0.3, 0.0, 0.0, 0.2])
    page.until("flight", lambda m: m["recorded"] >= 3)
    page.order(do="finish")
    assert "saved" in page.until("flight", lambda m: not m["recording"])["notice"]
    page.order(do="export")
    page.until("flight", lambda m: "Minari" in m["notice"])
    # The order may be given again and again: equal flights are written once.
    page.order(do="export")
    page.until("flight", lambda m: "exported already" in m["notice"])
    assert [path.name for path in tmp_path.glob("*-minari*")] == ["flights-minari"]
    (episode,) = import_minari(tmp_path / "flights-minari")
    demo = load_demonstration(page.session.saved[0])
    np.testing.assert_array_equal(episode.observations, demo.observations)
    np.testing.assert_array_equal(episode.actions, demo.actions)


def test_first_message_to_a_page_has_its_version(apartments, tmp_path, monkeypatch):
    """A page that was left open through an upgrade fetches itself anew."""
    session = ExplorerSession([SceneChoice("scene", lambda: apartments[0])], SMALL)
    later = tmp_path / "static"
    shutil.copytree(app.STATIC, later)
    versions = []
    for upgraded in (False, False, True):
        if upgraded:
            monkeypatch.setattr(app, "STATIC", later)
            (later / "map.js").write_text("// another one")
        with served_page(ExploreShow(session)) as address, connect(address.replace("http", "ws") + "/ws") as socket:
            first = unpacked(socket.recv(timeout=10))
            assert first["kind"] == "page"
            versions.append(first["version"])
    assert versions[0] == versions[1] != versions[2]


def test_drone_hovers_when_the_page_goes_silent(page):
    first = page.until("hello")["title"]
    page.order(do="command", axes=[0.0, 0.0, 0.0, 1.0])
    page.order(do="next")
    assert page.until("hello", lambda m: m["title"] != first)["mode"] == "explorer"
    # Without further orders the turn stops: an endless one would never give the same yaw twice.
    yaws = []
    page.until("frame", lambda m: yaws.append(m["pose"][3]) or (len(yaws) > 2 and yaws[-1] == yaws[-2]))
    page.order(do="view", sharp=True)
    assert page.until("frame", lambda m: m["sharp"])["depth"].shape == SMALL.sharp_bins


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({"do": "command", "axes": [1, 2, 3]}, "four finite numbers"),
        ({"do": "command", "axes": [1, 2, 3, "x"]}, "four finite numbers"),
        ({"do": "undo", "decisions": -1}, "whole number"),
        ({"do": "scene", "number": "last"}, "whole number"),
        ({"do": "land"}, "unknown order"),
        ({"do": "export"}, "no flight was saved yet"),
    ],
)
def test_invalid_page_orders_are_refused(page, order, reason):
    page.order(**order)
    assert reason in page.until("refused")["reason"]


def test_full_disk_pauses_and_keeps_the_flight(page, monkeypatch):
    """A flight at its limit is saved automatically; if that fails, the page gets a notice and can retry."""
    from navi_core.service.explorer import session as module

    def full(paths, demo):
        raise DemoError("cannot be written: No space left on device", path=next(iter(paths)))

    save = module.save_beside
    monkeypatch.setattr(module, "save_beside", full)
    page.session.config = SMALL.model_copy(update={"max_decisions": 5})
    page.order(do="record")
    flight = page.until("flight", lambda m: "No space left" in m["notice"])
    assert flight["recording"] and flight["paused"] and flight["recorded"] == 5
    monkeypatch.setattr(module, "save_beside", save)
    page.order(do="finish")
    page.until("flight", lambda m: "saved" in m["notice"] and not m["recording"])
    assert len(load_demonstration(page.session.saved[0]).actions) == 5


def test_weighted_reward_terms_are_marked_and_have_units(page):
    frame = page.until("frame")
    assert frame["units"] == {"progress": "m", "view_gain": "m²"}
    assert frame["weights"]["view_gain"] > 0 and frame["weights"]["proximity"] == 0


def test_closed_terminal_loses_no_flight(apartments, tmp_path):
    session = ExplorerSession([SceneChoice("scene", lambda: apartments[0])], SMALL, tmp_path / "flights")
    session.record()
    for _ in range(3):
        session.fly((0.2, 0.0, 0.0, 0.0))

    def close(address):
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGHUP)).start()

    # The tests may themselves run under nohup, whose processes are to outlive their terminal.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        serve_page(ExploreShow(session), listen("127.0.0.1", 0), ready=close)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
    assert len(load_demonstration(session.saved[0]).actions) == 3


def half_request(address):
    """A connection that sends half a header."""
    host, port = address.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)), timeout=10)
    client.sendall(b"GET / HTTP/1.1\r\nHost: x")
    return client


def ended(client):
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True


def test_clients_that_send_no_whole_request_are_hung_up_on(page, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 20)
    slow = [half_request(page.address) for _ in range(60)]
    assert all(map(ended, slow))
    with urllib.request.urlopen(page.address, timeout=10) as answer:
        assert answer.status == 200
    page.order(do="record")
    assert page.until("flight", lambda m: m["recording"])


def test_text_that_is_no_utf8_ends_its_connection_without_a_traceback(page, caplog, capfd):
    with connect(page.address.replace("http", "ws") + "/ws") as stranger, suppress(ConnectionClosed):
        stranger.send(b"\xff\xfe", text=True)
        while True:
            stranger.recv(timeout=10)
    assert "Traceback" not in caplog.text + capfd.readouterr().err
