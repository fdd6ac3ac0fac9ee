"""Browser pages: `navi explore`, `navi demos record`, `navi dashboard`, `navi record` and `navi replay`."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from navi_core.cli import completion
from navi_core.cli.parsing import StrictCommand
from navi_core.errors import ConfigError, RecordError, as_argument
from navi_core.terminal import print_facts, print_json, print_records, progress_bar

if TYPE_CHECKING:
    from navi_core.service.recordings import RecordedEpisode, Recording
    from navi_core.service.web.app import Show

app = typer.Typer()
Host = Annotated[str, typer.Option(help="Address to serve at; any other than 127.0.0.1 admits other machines.")]
Port = Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)]
NoToken = Annotated[
    bool, typer.Option("--no-token", help="Ask nobody for a token: all users of this machine may use the page.")
]
NewToken = Annotated[bool, typer.Option("--new-token", help="Make a new token; pages opened with the old one end.")]
Browser = Annotated[bool, typer.Option("--browser", help="Also open the page in the browser of this machine.")]


def open_page(show: Show, host: str, port: int, browser: bool, no_token: bool = False, new_token: bool = False) -> None:
    """Serve a web page over HTTP until interrupted, and print the link that opens it.

    Raises:
        ServiceError: The port is taken, or there is no such address.
    """
    import torch

    from navi_core.service.web.access import AccessToken
    from navi_core.service.web.app import listen, serve_page

    # One drone: waiting for a second thread costs more than it brings.
    torch.set_num_threads(1)
    if no_token and new_token:
        raise ConfigError("--no-token and --new-token exclude each other; give one of them")
    access = None if no_token else AccessToken.of_home(renew=new_token)

    def ready(address: str) -> None:
        link = address if access is None else f"{address}/#token={access.text}"
        typer.echo(f"{link} (Ctrl-C ends it)")
        if access is not None and not access.kept:
            typer.echo("warning: the home takes no token file, so this link ends with this command", err=True)
        if "SSH_CONNECTION" in os.environ and host in ("127.0.0.1", "localhost"):
            own = address.rsplit(":", 1)[1]
            typer.echo(f"over SSH, on your machine: ssh -N -L {own}:127.0.0.1:{own} {socket.gethostname()}")
        if host not in ("127.0.0.1", "localhost", "::1"):
            users = "everybody who reaches it" if access is None else "everybody who has or overhears its link (no TLS)"
            typer.echo(f"warning: {users} may use the page at {host}", err=True)
        if browser:
            import webbrowser

            webbrowser.open(link)

    serve_page(show, listen(host, port), host, ready, access)


Scenes = Annotated[
    list[str] | None,
    typer.Argument(
        help="A .gmdag or mesh file, a folder, or family:seeds as in apartment:0-3.",
        metavar="SCENE",
        autocompletion=completion.scenes,
    ),
]
Files = Annotated[
    list[Path] | None, typer.Option("--gmdag-file", help="A compiled scene; may be repeated.", metavar="FILE")
]
Seed = Annotated[int, typer.Option(help="Seed of the starts.")]
Azimuth = Annotated[int, typer.Option(help="Azimuth bins of the observations.")]
Elevation = Annotated[int, typer.Option(help="Elevation bins of the observations.")]
Resolution = Annotated[int, typer.Option(help="Compile resolution of meshes and generated scenes.")]


def _recordings() -> str:
    from navi_core.record.home import recordings_folder

    return str(recordings_folder())


class _Explore(StrictCommand):
    """Command whose `--record` may be given without a folder."""

    optional_values: ClassVar[dict[str, Callable[[], str]]] = {"--record": _recordings}


@app.command(cls=_Explore)
def explore(
    scene: Scenes = None,
    gmdag_file: Files = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            help="Save flights to this dataset folder; without DIR to recordings/ of the Navi home ($NAVI_DEMOS).",
            metavar="[DIR]",
        ),
    ] = None,
    seed: Seed = 0,
    azimuth_bins: Azimuth = 64,
    elevation_bins: Elevation = 16,
    resolution: Resolution = 512,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    browser: Browser = False,
    no_token: NoToken = False,
    new_token: NewToken = False,
) -> None:
    """Fly a drone manually through scenes in the browser, by keyboard, gamepad or touch; see its observation.

    Several scenes are walked through one by one. With --record, flights become demonstrations for `navi train bc`.
    """
    from navi_core.config import ExplorerConfig, parse_config
    from navi_core.record.home import scene_loaders
    from navi_core.service.explorer.session import ExplorerSession, SceneChoice
    from navi_core.service.web.explore import ExploreShow

    names = [*(scene or ()), *map(str, gmdag_file or ())] or ["apartment:0"]
    config = parse_config(
        ExplorerConfig, {"seed": seed, "azimuth_bins": azimuth_bins, "elevation_bins": elevation_bins}
    )
    choices = [SceneChoice(name, load) for name, load in scene_loaders(names, resolution)]
    session = ExplorerSession(choices, config, record)
    for path in session.recovered:
        typer.echo(f"{path}: a flight that an explorer was recording when it was killed")
    open_page(ExploreShow(session), host, port, browser, no_token, new_token)
    if record is not None and session.saved:
        clone = f"navi train bc --demos {as_argument(record)}"
        typer.echo(f"{len(session.saved)} flights saved in {record}; clone them: {clone}")


def record_by_hand(
    out: Annotated[Path, typer.Option(help="Dataset folder; given again, it goes on.")],
    scene: Scenes = None,
    gmdag_file: Files = None,
    seed: Seed = 0,
    azimuth_bins: Azimuth = 64,
    elevation_bins: Elevation = 16,
    resolution: Resolution = 512,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    browser: Browser = False,
    no_token: NoToken = False,
    new_token: NewToken = False,
) -> None:
    """Record demonstrations flown manually in the browser; the same as `navi explore SCENE --record DIR`."""
    explore(
        scene, gmdag_file, out, seed, azimuth_bins, elevation_bins, resolution, host, port, browser, no_token, new_token
    )


comparison: Callable[[Sequence[str]], str] | None = None
"""Renders the page that compares runs, by their names; the pipeline sets it, which reads the warehouse."""


@app.command()
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
    no_token: NoToken = False,
    new_token: NewToken = False,
) -> None:
    """Open a live dashboard of a training or a service in the browser; with no page open, nothing is published.

    It may be started before what it watches, and follows it through restarts.
    """
    from navi_core.service.web.live import LiveShow

    show = LiveShow(sub or (), status or (), comparison=comparison)
    open_page(show, host, port, browser, no_token, new_token)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command()
def record(
    out: Annotated[Path, typer.Option(help="The file; given again, it is gone on with.")],
    sub: Annotated[
        list[str] | None,
        typer.Option(
            "--sub",
            help="A publisher; may be repeated. By default the training that runs on this machine, else the "
            "service's own ports.",
            metavar="ENDPOINT",
        ),
    ] = None,
    drone: Annotated[int | None, typer.Option(help="Drone to ask for; by default the one that is shown.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Duration (s); by default until interrupted.")] = None,
    as_json: Json = False,
) -> None:
    """Record the wire messages that a training or a service publishes to a file; Ctrl-C ends it."""
    from navi_core.config.service import ACTION_ENDPOINT, OBSERVATION_ENDPOINT
    from navi_core.learn.run.process import StopFlag
    from navi_core.service.recordings import Recorded, record_session
    from navi_core.service.viewing.feed import announced

    notes = announced()
    endpoints = sub or ([notes[0].endpoint] if notes else [OBSERVATION_ENDPOINT, ACTION_ENDPOINT])
    typer.echo(f"recording {', '.join(endpoints)} into {out} (Ctrl-C ends it)", err=True)
    with progress_bar("recording") as bar, StopFlag() as stop:

        def show(done: Recorded) -> None:
            label = f"{done.messages.total():,} messages, {done.seconds:.0f} s"
            bar(label, done.seconds, seconds or max(done.seconds, 1e-9))

        done = record_session(endpoints, out, drone=drone, seconds=seconds, stop=stop, progress=show)
    facts: dict[str, Any] = {
        "file": str(out),
        "messages": done.messages.total(),
        **{topic.removesuffix("_v2"): count for topic, count in sorted(done.messages.items())},
        "refused": done.refused,
        "seconds": round(done.seconds, 1),
        "megabytes": round(out.stat().st_size / 1e6, 2),
    }
    if done.cut:
        facts["cut"] = f"{done.cut} bytes of a message that an earlier recording had not finished"
    if as_json:
        print_json(facts)
    else:
        print_facts("recorded", {name: str(value) for name, value in facts.items()})
        typer.echo(f"look at it: navi replay {as_argument(out)}")


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A recording.")],
    rrd: Annotated[
        Path | None, typer.Option("--rrd", help="Write an episode for the Rerun viewer instead.", metavar="OUT")
    ] = None,
    episode: Annotated[
        int | None, typer.Option(help="Number in --list, from 0; by default the longest.", min=0)
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the episodes instead.")] = False,
    host: Host = "127.0.0.1",
    port: Port = 8766,
    browser: Browser = False,
    no_token: NoToken = False,
    new_token: NewToken = False,
    as_json: Json = False,
) -> None:
    """Replay a recorded session in the browser, list its episodes, or export one as a Rerun `.rrd` file."""
    from navi_core.service.recordings import Recording

    with Recording(file) as recording:
        if recording.unfinished:
            typer.echo(f"warning: the last message is unfinished ({recording.unfinished} bytes) and left out", err=True)
        if recording.damage:
            typer.echo(f"warning: {recording.damage}", err=True)
        if listing or rrd is not None or as_json:
            _episodes(recording, rrd, episode, as_json)
            if recording.damaged:
                typer.echo(f"warning: {recording.damaged} damaged messages are left out", err=True)
            return
        from navi_core.service.web.replay import ReplayShow

        open_page(ReplayShow(recording, file.name), host, port, browser, no_token, new_token)


def _episodes(recording: Recording, rrd: Path | None, wanted: int | None, as_json: bool) -> None:
    from navi_core.record.rerun import write_rrd
    from navi_core.service.recordings import list_episodes, trace_episode

    episodes = list_episodes(recording)
    rows = [_row(number, one) for number, one in enumerate(episodes)]
    if rrd is not None:
        if not episodes:
            raise RecordError(f"{recording.path} holds no observation; a page must be open or --drone given")
        number = wanted if wanted is not None else max(range(len(rows)), key=lambda n: episodes[n].frames)
        if number >= len(episodes):
            raise RecordError(f"no episode {number}; {recording.path} has {len(episodes)}, see --list")
        write_rrd(rrd, trace_episode(recording, episodes[number]))
        if not as_json:
            typer.echo(f"episode {number} ({episodes[number].frames} observations) in {rrd}; rerun {rrd} shows it")
            return
    if as_json:
        facts = {"messages": len(recording.frames), "seconds": recording.seconds, "unfinished": recording.unfinished}
        print_json({"file": str(recording.path), **facts, "episodes": rows, "rrd": str(rrd) if rrd else None})
        return
    print_records(f"{recording.path}: {len(recording.frames):,} messages, {recording.seconds:.1f} s", rows)


def _row(number: int, episode: RecordedEpisode) -> dict[str, Any]:
    return {
        "number": number,
        "drone": episode.drone,
        "episode": episode.episode,
        "observations": episode.frames,
        "from_s": round(episode.began, 1),
        "to_s": round(episode.ended, 1),
    }
