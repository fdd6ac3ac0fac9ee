"""PostgreSQL server for tests: started by the first test that asks for it, and gone with the last."""

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest


def binaries() -> Path:
    """Return the folder of PostgreSQL's programs, or skip."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            return folder
    found = shutil.which("initdb")
    if found is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    return Path(found).parent


def server_user() -> str | None:
    """Return the user of the server, which refuses to run as root."""
    if os.geteuid():
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    pytest.skip("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


@pytest.fixture(scope="module")
def postgres_server():
    """A server that listens on a socket in a folder of its own alone; the folder's path."""
    programs, user = binaries(), server_user()
    # A path to a socket has at most 107 bytes, and the server's user must be allowed to walk it.
    folder = Path(tempfile.mkdtemp(prefix="navi-pg-", dir="/tmp"))
    given = {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
    if user is not None:
        shutil.chown(folder, user)
    data = folder / "data"
    made = subprocess.run(
        [programs / "initdb", "-D", data, "-U", "navi", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"],
        capture_output=True, text=True, cwd=folder, timeout=120, **given,
    )  # fmt: skip
    if made.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"initdb fails here: {made.stderr.strip().splitlines()[-1]}")
    library = ctypes.CDLL(None)
    process = subprocess.Popen(
        [programs / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off",
         "-c", "shared_buffers=16MB", "-c", "max_connections=40"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, **given,
        # Should the test be killed, SIGQUIT ends the server at once.
        preexec_fn=lambda: library.prctl(1, signal.SIGQUIT),
    )  # fmt: skip
    try:
        ready = [programs / "pg_isready", "-q", "-h", folder, "-U", "navi", "-d", "postgres"]
        deadline = time.monotonic() + 60.0
        while subprocess.run(ready, timeout=30).returncode:
            assert process.poll() is None and time.monotonic() < deadline, "the server does not come up"
            time.sleep(0.1)
        yield folder
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database(postgres_server):
    """A new database; its name."""
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed (pip install -e '.[postgres]')")
    name = f"navi_{time.time_ns()}"
    with psycopg.connect(host=str(postgres_server), user="navi", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return name
