"""`navi dashboard`: watch a running training or service in the browser."""

from typing import Annotated

import typer

from navi_core.cli.page import Browser, Host, Port, open_page


def register(app: typer.Typer) -> None:
    """Add `dashboard` to the `navi` command."""
    app.command("dashboard")(dashboard)


def dashboard(
    sub: Annotated[
        list[str] | None,
        typer.Option(
            "--sub",
            help="A publisher, as tcp://127.0.0.1:5559; may be repeated. By default the trainings that run on this "
            "machine, and the service's own ports.",
            metavar="ENDPOINT",
        ),
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", help="Pages of a server, as http://127.0.0.1:9100; may be repeated.", metavar="URL"),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8764,
    browser: Browser = False,
) -> None:
    """Watch a training or a service in the browser, live; with no page open, nothing is published.

    It may be started before what it watches, and follows it through restarts.
    """
    from navi_core.service.web.live import LiveShow

    open_page(LiveShow(sub or (), status or ()), host, port, browser)
