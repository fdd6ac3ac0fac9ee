"""`navi explore` and `navi demos record`: fly by hand in the browser, and record demonstrations."""

from pathlib import Path
from typing import Annotated

import typer

from navi_core.cli.page import Browser, Host, Port, open_page
from navi_core.errors import as_argument

Scenes = Annotated[
    list[str] | None,
    typer.Argument(help="A .gmdag or mesh file, a folder, or family:seeds as in apartment:0-3.", metavar="SCENE"),
]
Files = Annotated[
    list[Path] | None, typer.Option("--gmdag-file", help="A compiled scene; may be repeated.", metavar="FILE")
]
Seed = Annotated[int, typer.Option(help="Seed of the starts.")]
Azimuth = Annotated[int, typer.Option(help="Azimuth bins of the observations.")]
Elevation = Annotated[int, typer.Option(help="Elevation bins of the observations.")]
Resolution = Annotated[int, typer.Option(help="Compile resolution of meshes and generated scenes.")]


def register(app: typer.Typer) -> None:
    """Add `explore` to the `navi` command."""
    app.command("explore")(explore)


def explore(
    scene: Scenes = None,
    gmdag_file: Files = None,
    record: Annotated[
        Path | None, typer.Option("--record", help="Dataset folder that flights are saved to.", metavar="DIR")
    ] = None,
    seed: Seed = 0,
    azimuth_bins: Azimuth = 64,
    elevation_bins: Elevation = 16,
    resolution: Resolution = 512,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    browser: Browser = False,
) -> None:
    """Fly through scenes in the browser with keyboard, gamepad or touch; see what the drone sees.

    Several scenes are walked through one by one. With --record, flights become demonstrations for `navi bc`.
    """
    _explore(scene, gmdag_file, record, seed, azimuth_bins, elevation_bins, resolution, host, port, browser)


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
) -> None:
    """Record demonstrations flown by hand in the browser; the same as `navi explore SCENE --record DIR`."""
    _explore(scene, gmdag_file, out, seed, azimuth_bins, elevation_bins, resolution, host, port, browser)


def _explore(
    scene: list[str] | None,
    files: list[Path] | None,
    folder: Path | None,
    seed: int,
    azimuth_bins: int,
    elevation_bins: int,
    resolution: int,
    host: str,
    port: int,
    browser: bool,
) -> None:
    from navi_core.config import ExplorerConfig, parse_config
    from navi_core.record.home import scene_loaders
    from navi_core.service.explorer import ExplorerSession, SceneChoice
    from navi_core.service.web.explore import ExploreShow

    names = [*(scene or ()), *map(str, files or ())] or ["apartment:0"]
    config = parse_config(
        ExplorerConfig, {"seed": seed, "azimuth_bins": azimuth_bins, "elevation_bins": elevation_bins}
    )
    choices = [SceneChoice(name, load) for name, load in scene_loaders(names, resolution)]
    session = ExplorerSession(choices, config, folder)
    for path in session.recovered:
        typer.echo(f"{path}: a flight that an explorer was recording when it was killed")
    open_page(ExploreShow(session), host, port, browser)
    if folder is not None and session.saved:
        clone = f"navi bc --demos {as_argument(folder)}"
        typer.echo(f"{len(session.saved)} flights saved in {folder}; clone them: {clone}")
