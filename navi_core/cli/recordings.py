"""`navi record` and `navi replay`: keep what publishers send, and look at it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navi_core.cli.page import Browser, Host, Port, open_page
from navi_core.errors import as_argument
from navi_core.terminal import print_facts, print_json, print_records, progress_bar

if TYPE_CHECKING:
    from navi_core.service.recordings import RecordedEpisode, Recording

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def register(app: typer.Typer) -> None:
    """Add `record` and `replay` to the `navi` command."""
    app.command("record")(record)
    app.command("replay")(replay)


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
    seconds: Annotated[float | None, typer.Option(help="How long [s]; by default until interrupted.")] = None,
    as_json: Json = False,
) -> None:
    """Record a session: what a training or a service publishes, message by message; Ctrl-C ends it."""
    from navi_core.config.service import ACTION_ENDPOINT, OBSERVATION_ENDPOINT
    from navi_core.learn.run.signals import StopFlag
    from navi_core.service.recordings import Recorded, record_session
    from navi_core.service.viewing import announced

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


def replay(
    file: Annotated[Path, typer.Argument(help="A recording.")],
    rrd: Annotated[
        Path | None, typer.Option("--rrd", help="Write an episode for the Rerun viewer instead.", metavar="OUT")
    ] = None,
    episode: Annotated[
        int | None, typer.Option(help="Which one of --list, from 0; by default the longest.", min=0)
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the episodes instead.")] = False,
    host: Host = "127.0.0.1",
    port: Port = 8766,
    browser: Browser = False,
    as_json: Json = False,
) -> None:
    """Play a recorded session in the browser, list its episodes, or write one as a `.rrd` file."""
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

        open_page(ReplayShow(recording, file.name), host, port, browser)


def _episodes(recording: Recording, rrd: Path | None, wanted: int | None, as_json: bool) -> None:
    from navi_core.errors import RecordError
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
