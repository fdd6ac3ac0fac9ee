"""Access to the pages: token, its renewal, the command that prints it, and limits of connections."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress

import pytest
from typer.testing import CliRunner
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from navi_core.cli.main import build_app
from navi_core.service.web import app, connections
from navi_core.service.web.access import AccessToken
from navi_core.service.web.app import NO_TOKEN_CODE, served_page
from navi_core.service.web.live import LiveShow
from tests.browser import headless_browser


@pytest.fixture
def token(tmp_path):
    return AccessToken(tmp_path / "token")


@pytest.fixture
def address(token, tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path))
    with served_page(LiveShow(comparison=lambda runs: f"<p>{runs}</p>"), access=token) as address:
        yield address


def status(url, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def close_code(address, query=""):
    """Open a WebSocket; return the code with which the server closes it, None where it sends messages."""
    with connect(f"{address.replace('http', 'ws')}/ws{query}", max_size=2**26) as page:
        try:
            page.recv(timeout=10)
        except ConnectionClosed as error:
            return error.rcvd.code
    return None


@pytest.mark.parametrize("path", ["/compare?run=a&run=b", "/scene/" + "0" * 24 + ".mesh"])
def test_what_a_page_shows_needs_the_token(address, token, path):
    served = 200 if "compare" in path else 404
    joined = f"{address}{path}{'&' if '?' in path else '?'}token="
    assert status(address + path) == status(joined + "x") == status(address + path, Authorization="Bearer x") == 401
    assert status(joined + token.text) == status(address + path, Authorization=f"Bearer {token.text}") == served


def test_orders_and_messages_need_the_token(address, token):
    assert status(address) == status(f"{address}/healthz") == 200
    for query in ("", "?token=", "?token=x", "?token=%ff%00"):
        assert close_code(address, query) == NO_TOKEN_CODE
    assert close_code(address, f"?token={token.text}") is None


def test_renewed_token_ends_open_pages_and_refuses_the_old_one(address, token, tmp_path):
    old = token.text
    with connect(f"{address.replace('http', 'ws')}/ws?token={old}", max_size=2**26) as page:
        page.recv(timeout=10)
        renewed = AccessToken(tmp_path / "token", renew=True)
        assert renewed.text != old and renewed.kept
        # Messages that were under way come first.
        with suppress(ConnectionClosed):
            while True:
                page.recv(timeout=10)
    assert page.close_code == close_code(address, f"?token={old}") == NO_TOKEN_CODE
    assert close_code(address, f"?token={renewed.text}") is None


def test_token_file_is_private_and_a_shared_one_is_replaced(tmp_path):
    path = tmp_path / "token"
    first = AccessToken(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and len(first.text) == 32
    assert AccessToken(path).text == first.text
    old = first.text
    path.chmod(0o644)
    second = AccessToken(path)
    assert second.text != old and stat.S_IMODE(path.stat().st_mode) == 0o600
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("planted")
    assert AccessToken(path).text != "planted"
    # Where no file can be written the token ends with its process.
    fresh = AccessToken(tmp_path / "elsewhere" / "token")
    assert not fresh.kept and fresh.accepts(fresh.text) and not fresh.accepts(None) and not fresh.accepts("")


@pytest.mark.slow
def test_command_prints_a_link_that_opens_the_page(tmp_path):
    """Four starts of the command; about 15 s."""
    command = [sys.executable, "-c", "from navi_core.cli.main import main; main()", "dashboard", "--port", "0"]
    environment = os.environ | {"NAVI_HOME": str(tmp_path)}
    links = []
    for more in ([], [], ["--new-token"], ["--no-token"]):
        process = subprocess.Popen(command + more, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            links.append(process.stdout.readline().split(" ")[0])
            address, _, given = links[-1].partition("/#token=")
            assert close_code(address, f"?token={given}") is None
            if given:
                assert close_code(address) == NO_TOKEN_CODE
        finally:
            process.terminate()
            process.communicate(timeout=20)
    tokens = [link.partition("#token=")[2] for link in links]
    assert tokens[0] == tokens[1] != tokens[2] and tokens[3] == "" and len(set(map(len, tokens[:3]))) == 1


def test_contradicting_token_options_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path))
    done = CliRunner().invoke(build_app(groups=("pages",), plugins=False), ["dashboard", "--no-token", "--new-token"])
    assert done.exit_code != 0 and "exclude each other" in str(done.exception or done.output)


@pytest.mark.browser
def test_link_opens_the_page_and_leaves_no_token_in_the_address(address, token, tmp_path):
    from playwright.sync_api import expect

    with headless_browser() as browser:
        page = browser.new_page()
        page.goto(address)
        expect(page.locator("#token-card")).to_be_visible()
        expect(page.locator("#phase")).to_have_text("token needed")
        page.fill("#token", f"{address}/#token={token.text}")
        page.click("#token-form button")
        expect(page.locator("#title")).to_have_text("Nothing runs here")
        expect(page.locator("#token-card")).to_be_hidden()
        assert page.url == f"{address}/"
        page.reload()
        expect(page.locator("#title")).to_have_text("Nothing runs here")
        renewed = AccessToken(tmp_path / "token", renew=True)
        expect(page.locator("#token-card")).to_be_visible()
        page.goto(f"{address}/#token={renewed.text}")
        expect(page.locator("#token-card")).to_be_hidden()
        assert re.fullmatch(re.escape(address) + "/#?", page.url)


def test_pages_beyond_the_limit_are_refused(address, token, monkeypatch):
    monkeypatch.setattr(app, "MAX_VIEWERS", 2)
    link = f"{address.replace('http', 'ws')}/ws?token={token.text}"
    with connect(link, max_size=2**26) as one, connect(link, max_size=2**26) as two:
        assert one.recv(timeout=10) and two.recv(timeout=10)
        with pytest.raises(InvalidStatus), connect(link):
            pass


def test_endless_headers_are_hung_up_on(address):
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        sent = 0
        with suppress(OSError):
            for number in range(100_000):
                sent += client.send(b"X-%d: %s\r\n" % (number, b"x" * 900))
        # What lies in the sockets' buffers was sent, but is not read.
        assert sent < 20 * 2**20
    assert status(address) == 200 and connections.MAX_REQUEST_BYTES < 2**20
