"""The page through a port that SSH forwards, by the command that Navi prints; takes about 10 s."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import headless_browser
from tests.service.web.test_watching import until

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
COMMAND = "from navi_core.cli.main import main; main()"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@pytest.fixture
def ssh(tmp_path):
    """Start an SSH server on loopback with keys of its own; return the client's options."""
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("no SSH server and client (Debian: apt-get install openssh-server openssh-client)")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    port = free_port()
    settings = {
        "Port": port, "ListenAddress": "127.0.0.1", "HostKey": tmp_path / "host", "PidFile": "none", "UsePAM": "no",
        "AuthorizedKeysFile": tmp_path / "user.pub", "StrictModes": "no", "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
    }  # fmt: skip
    (tmp_path / "config").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    server = subprocess.Popen([SSHD, "-D", "-e", "-f", tmp_path / "config"], stderr=subprocess.PIPE, text=True)
    known = ["StrictHostKeyChecking=no", f"UserKnownHostsFile={tmp_path / 'known'}", "ExitOnForwardFailure=yes"]
    options = ["-p", str(port), "-i", str(tmp_path / "user"), *(part for one in known for part in ("-o", one))]
    try:
        yield options
    finally:
        server.kill()
        server.communicate()


def reached(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
@pytest.mark.browser
def test_page_opens_through_the_forwarded_port_of_the_printed_command(ssh, tmp_path):
    """The forwarding has another port on this side, as both sides are one machine here."""
    from playwright.sync_api import expect

    environment = os.environ | {"NAVI_HOME": str(tmp_path), "SSH_CONNECTION": "192.0.2.1 1 192.0.2.2 22"}
    arguments = [sys.executable, "-c", COMMAND, "dashboard", "--port", "0"]
    page = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)
    forward, here = None, free_port()
    try:
        link, command = (page.stdout.readline().strip() for _ in range(2))
        port, _, token = link.split()[0].removeprefix("http://127.0.0.1:").partition("/#token=")
        printed = command.partition(": ")[2].split()
        assert printed[:2] == ["ssh", "-N"] and printed[2:4] == ["-L", f"{port}:127.0.0.1:{port}"]
        user = f"{getpass.getuser()}@127.0.0.1"
        forward = subprocess.Popen(["ssh", *ssh, "-N", "-L", f"{here}:127.0.0.1:{port}", user])
        until(lambda: reached(here), 20.0)
        with headless_browser() as browser:
            opened = browser.new_page()
            opened.goto(f"http://127.0.0.1:{here}/#token={token}")
            expect(opened.locator("#title")).to_have_text("Nothing runs here")
            opened.goto(f"http://localhost:{here}/")
            expect(opened.locator("#token-card")).to_be_visible()
    finally:
        for process in filter(None, (forward, page)):
            process.terminate()
            process.communicate(timeout=20)
