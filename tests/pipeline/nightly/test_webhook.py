"""Webhook of a night: a failed night is posted as JSON, and a webhook that fails changes nothing."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from navi_core.config import parse_config
from navi_core.errors import ConfigError
from navi_pipeline.lib.nightly import stages
from navi_pipeline.lib.nightly.night import Gate, Night
from navi_pipeline.lib.nightly.stages import write_summary
from navi_pipeline.settings import NightlyConfig


@pytest.fixture
def server(monkeypatch):
    """A web server on loopback with the bodies that it was sent, and the status that it answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            http.posted.append((self.headers["Content-Type"], body))
            self.send_response(http.status)
            self.end_headers()

        def log_message(self, *_):
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        http.posted, http.status = [], 200
        http.url = f"http://127.0.0.1:{http.server_port}/hook/secret"
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        yield http
        http.shutdown()


def summed_up(name, passed, **settings):
    night = Night(NightlyConfig(**settings), name, report=lambda line: None)
    night.run("preflight", lambda night: ([Gate("free disk", True, passed, "0.1 GiB")], {}))
    return write_summary(night)


def test_failed_night_posts_its_gates_and_links(server):
    markdown, page = summed_up("bad", False, webhook=server.url)
    ((kind, body),) = server.posted
    assert kind == "application/json" and (body["night"], body["verdict"]) == ("bad", "failed")
    assert body["failed"] == [{"gate": "free disk", "detail": "0.1 GiB"}] and "free disk: 0.1 GiB" in body["text"]
    assert [Path(body["links"][name].removeprefix("file://")) for name in ("summary", "page")] == [markdown, page]


def test_passed_night_and_a_night_without_a_webhook_call_nobody(server):
    summed_up("good", True, webhook=server.url)
    summed_up("bad", False)
    assert not server.posted


def test_variable_wins_over_the_setting(server, monkeypatch):
    monkeypatch.setenv("NAVI_NIGHTLY_WEBHOOK", server.url)
    summed_up("bad", False, webhook="http://127.0.0.1:9/nobody")
    assert len(server.posted) == 1


@pytest.mark.parametrize("fault", ["500", "refused", "silent", "scheme"])
def test_failure_of_the_webhook_is_a_warning_without_its_secret(server, monkeypatch, caplog, fault):
    monkeypatch.setattr(stages, "_WEBHOOK_SECONDS", 0.5)
    server.status = 500
    url = server.url
    if fault == "refused":
        url = "http://127.0.0.1:9/hook/secret"
    if fault == "silent":
        server.shutdown()  # connections are accepted by the system, and nobody answers
    if fault == "scheme":
        monkeypatch.setenv("NAVI_NIGHTLY_WEBHOOK", "file:///etc/secret")
    assert all(file.exists() for file in summed_up("bad", False, webhook=url))
    assert "the webhook of night bad did not answer: " in caplog.text and "secret" not in caplog.text


def test_setting_takes_http_alone():
    with pytest.raises(ConfigError, match="webhook"):
        parse_config(NightlyConfig, {"webhook": "file:///etc/passwd"})
