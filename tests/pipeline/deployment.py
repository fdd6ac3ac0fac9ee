"""Services of `deploy/compose.yaml` as processes of this machine."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SERVICES = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Deployment:
    """The compose file's services as processes of this machine, with ports and folders of their own."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.ports = {"4000": str(free_port()), "3000": str(free_port())}
        workspace = (DEPLOY / "workspace.yaml").read_text().replace("host: code", "host: 127.0.0.1")
        (folder / "workspace.yaml").write_text(workspace.replace("4000", self.ports["4000"]))
        self.processes: list[subprocess.Popen] = []

    def start(self, *services: str) -> None:
        own = {"0.0.0.0": "127.0.0.1", "/opt/dagster/workspace.yaml": str(self.folder / "workspace.yaml")} | self.ports
        for service in services:
            program, *arguments = [own.get(word, word) for word in SERVICES[service]["command"]]
            command = [str(Path(sys.executable).parent / program), *arguments]
            with (self.folder / f"{service}.log").open("a") as log:
                self.processes.append(
                    subprocess.Popen(
                        command, cwd=ROOT, env=self.environment, stdout=log, stderr=log, start_new_session=True
                    )
                )

    def ask(self, query: str, **variables: object) -> dict:
        body = json.dumps({"query": query, "variables": variables}).encode()
        address = f"http://127.0.0.1:{self.ports['3000']}/graphql"
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["data"]

    def until(self, what: str, condition, seconds: float = 300.0):
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError, KeyError, TypeError):
                if found := condition():
                    return found
            logs = "\n".join(file.read_text()[-1500:] for file in self.folder.glob("*.log"))
            assert all(process.poll() is None for process in self.processes), logs
            assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s\n{logs}"
            time.sleep(0.5)

    def stop(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.processes.clear()
