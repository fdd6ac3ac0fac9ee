"""Options and serving of commands with a page in the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from navi_core.service.web.app import Show

Host = Annotated[str, typer.Option(help="Address to serve at; others than 127.0.0.1 let other machines in.")]
Port = Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)]
Browser = Annotated[bool, typer.Option("--browser", help="Also open the page in the browser of this machine.")]


def open_page(show: Show, host: str, port: int, browser: bool) -> None:
    """Serve a page until interrupted, and print its address.

    Raises:
        ServiceError: The port is taken, or there is no such address.
    """
    import torch

    from navi_core.service.web import listen, serve_page

    # One drone: waiting for a second thread costs more than it brings.
    torch.set_num_threads(1)

    def ready(address: str) -> None:
        typer.echo(f"{address} (Ctrl-C ends it)")
        if host not in ("127.0.0.1", "localhost", "::1"):
            typer.echo(f"warning: everybody who reaches {host} sees this page and may use it", err=True)
        if browser:
            import webbrowser

            webbrowser.open(address)

    serve_page(show, listen(host, port), host, ready)
