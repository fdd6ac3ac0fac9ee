"""Access to the pages: the token that they ask for, and the names by which browsers may call them.

The token is a file of the home that only its user may read, so that open pages survive a restart of their server. A new
token shuts out every page that has the old one.
"""

import hmac
import ipaddress
import os
import secrets
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import Request, Response, WebSocket

from navi_core.record import navi_home
from navi_core.record.durable import write_durably

_BYTES = 24
"""Random bytes of a token."""
_MOST_BYTES = 256
STATIC = Path(__file__).parent / "static"
"""Folder of the page's files."""
_PUBLIC = frozenset({"/", "/healthz", *(f"/{file.relative_to(STATIC).as_posix()}" for file in STATIC.rglob("*.*"))})
"""Paths that need no token; every other one shows data of this machine."""


class AccessToken:
    """Token of the pages of a user in a home; read anew from its file at each use, so that it can be renewed.

    Args:
        path: File of the token; it need not exist.
        renew: Make a new token even where there is one.

    Attributes:
        kept: Whether the token is in the file; where none can be written, it ends with this process.
    """

    def __init__(self, path: Path, *, renew: bool = False) -> None:
        self._path = path
        self._own = secrets.token_urlsafe(_BYTES)
        if renew or self._stored() is None:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_durably(path, self._own.encode(), mode=0o600)
        self.kept = self._stored() is not None and not (renew and self._stored() != self._own)

    @classmethod
    def of_home(cls, *, renew: bool = False) -> "AccessToken":
        """Return the token of this user in the Navi home."""
        return cls(navi_home() / f"page-token-{os.getuid()}", renew=renew)

    @property
    def text(self) -> str:
        """The token that is accepted now."""
        return (self._stored() if self.kept else None) or self._own

    def accepts(self, given: str | None) -> bool:
        """Return whether a text is the token; the comparison takes the same time for all texts of one length."""
        return hmac.compare_digest((given or "").encode(), self.text.encode())

    def _stored(self) -> str | None:
        """Read the file; None where it is missing, or where another user owns, may read or may write it."""
        with suppress(OSError, ValueError):
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                about = os.fstat(descriptor)
                private = about.st_uid == os.getuid() and stat.S_IMODE(about.st_mode) & 0o077 == 0
                if private and stat.S_ISREG(about.st_mode):
                    return file.read(_MOST_BYTES).decode("ascii") or None
        return None


@dataclass(frozen=True)
class Admission:
    """Rules by which a page's server answers or refuses a request.

    Attributes:
        host: Name or address of the server.
        token: Token that is asked for; None asks for none.
    """

    host: str
    token: AccessToken | None

    def accepts(self, given: str | None) -> bool:
        """Return whether a text is the token, where one is asked for."""
        return self.token is None or self.token.accepts(given)

    def refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is refused; None for one that is served."""
        if not _is_local_name(request.headers.get("host", ""), self.host):
            # Against DNS rebinding: a site whose name resolves to this machine could read the page and fly the drone.
            text = "this page answers to addresses, to localhost and to the name of its machine"
            return Response(f"{text}; another name is given with --host\n", 400, media_type="text/plain")
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if request.url.path not in _PUBLIC and not self.accepts(bearer or request.query_params.get("token")):
            text = "this page asks for a token; next: open the link that its command printed\n"
            return Response(text, 401, {"WWW-Authenticate": "Bearer"}, "text/plain")
        return None

    def is_foreign(self, connection: WebSocket) -> bool:
        """Return whether another site opened a WebSocket, or another name leads here."""
        return not _same_site(connection) or not _is_local_name(connection.headers.get("host", ""), self.host)


def _same_site(connection: WebSocket) -> bool:
    """Return whether a WebSocket's Origin is this server: other sites in the same browser must not fly the drone."""
    origin = connection.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == connection.headers.get("host")


def _is_local_name(requested: str, host: str) -> bool:
    """Return whether a request's Host header is an address or a name of this machine."""
    try:
        # A trailing dot marks a complete name.
        name = (urlsplit(f"//{requested}").hostname or "").removesuffix(".")
    except ValueError:
        return False
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    machine = socket.gethostname().lower()
    names = {"localhost", host.lower().removesuffix("."), machine, f"{machine}.local", machine.partition(".")[0]}
    return name in names or name.endswith(".localhost")
