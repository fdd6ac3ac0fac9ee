"""Catalogue of the command line: panels of `navi --help`, old names of commands, and the root group."""

from __future__ import annotations

import copy
from typing import Any

import typer
from typer.core import TyperGroup

START = {
    "navi demo": "scenes, training, verdict and champion in two minutes",
    "navi doctor FOLDER": "what your scans or meshes need, and the next command",
    "navi explore": "fly through a generated apartment in the browser",
}
"""First commands of a newcomer, with what they do."""

PANELS: dict[str, dict[str, str]] = {
    "Scenes": {
        "doctor": "check a folder of scans or meshes, or this machine",
        "scenes": "generate, compile, list, show and qualify scenes",
        "demos": "record, ingest, list, show and export demonstrations",
    },
    "Train": {
        "train": "train a policy: ppo, grpo, dpo, dqn, apex, bc",
        "runs": "list, show, compare and remove training runs",
        "models": "versions and aliases: list, show, promote, export",
        "study": "search over settings; sweep and ablate them",
        "settings": "every setting: value, source, allowed values, meaning",
    },
    "Judge": {
        "evaluate": "fly a policy or pilot from frozen starts and measure it",
        "compare": "fly two policies from the same starts, with intervals",
        "report": "write one offline HTML page of all results",
        "bench": "measure this machine: rays, steps, policies, services",
    },
    "Fly and watch": {
        "explore": "fly a drone by hand in the browser, and record flights",
        "dashboard": "watch a training or a service in the browser",
        "replay": "replay a recorded session (navi record makes one)",
        "serve": "serve a policy to drones over the wire",
        "environment": "serve simulated drones over the wire",
    },
    "Pipeline and data": {
        "pipeline": "run the asset graph: demo, materialize, nightly, ui",
        "query": "ask the warehouse in SQL or by a saved query",
        "warehouse": "list, show, compact and publish tables, views, queries",
    },
}
"""Panel → command → one line of at most 62 characters; commands of no panel are hidden at the top."""

OLD_NAMES = {
    "bc": "train bc", "learner": "train apex", "actor": "train actor", "promote": "models promote",
    "export": "models export", "sweep": "study sweep", "ablate": "study ablate", "demo": "pipeline demo",
    "materialize": "pipeline materialize", "nightly": "pipeline nightly", "schedules": "pipeline schedules",
    "ui": "pipeline ui",
    "scenes discover": "scenes list", "scenes inspect": "scenes show", "demos inspect": "demos show",
}  # fmt: skip
"""Old name of a command → its name; the old ones keep working and are hidden."""


class RootGroup(TyperGroup):
    """Root command group: its help shows the commands in panels, after the first commands of a newcomer."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 (typer's click is private)
        """Return the commands in the order of the panels, then the hidden ones."""
        shown = [name for panel in PANELS.values() for name in panel if name in self.commands]
        return [*shown, *(name for name in self.commands if name not in shown)]

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002 (typer's click is private)
        """Print the panels: at most 45 lines of 80 columns."""
        from rich.box import ROUNDED
        from rich.console import Console
        from rich.panel import Panel
        from rich.table import Table

        console = Console(highlight=False, markup=False)
        typer.echo(f" {self.help}\n Usage: navi COMMAND [ARGS]…")

        def show(title: str, rows: dict[str, str], width: int) -> None:
            table = Table.grid(padding=(0, 2))
            table.add_column(style="bold cyan", no_wrap=True, min_width=width)
            table.add_column(overflow="fold")
            for row in rows.items():
                table.add_row(*row)
            console.print(Panel(table, title=title, title_align="left", border_style="dim", box=ROUNDED))

        show("Start here", START, 18)
        for title, panel in PANELS.items():
            show(title, {name: text for name, text in panel.items() if name in self.commands}, 11)
        typer.echo(" navi COMMAND --help        options of a command, with its defaults")
        typer.echo(" navi --install-completion  complete names and values with Tab;  navi --version")


def copy_groups(app: typer.Typer) -> dict[str, typer.Typer]:
    """Give an application copies of its command groups; return them by name, the application itself by ""."""
    groups = {"": app}
    for info in app.registered_groups:
        assert info.typer_instance is not None
        group = info.typer_instance = copy.copy(info.typer_instance)
        group.registered_commands = list(group.registered_commands)
        groups[str(group.info.name)] = group
    return groups


def arrange(app: typer.Typer) -> None:
    """Hide the commands of no panel, and add the old names, which are hidden too."""
    groups = copy_groups(app)
    for old, new in OLD_NAMES.items():
        room, _, name = new.rpartition(" ")
        there = groups[room].registered_commands if room in groups else []
        info = next((each for each in there if command_name(each) == name), None)
        if info is not None:
            alias = copy.copy(info)
            room, _, alias.name = old.rpartition(" ")
            alias.hidden = True
            groups[room].registered_commands.append(alias)
    shown = {name for panel in PANELS.values() for name in panel}
    for number, info in enumerate(app.registered_commands):
        if command_name(info) not in shown:
            app.registered_commands[number] = info = copy.copy(info)
            info.hidden = True


def command_name(info: Any) -> str:  # noqa: ANN401 (typer's CommandInfo is private)
    """Return the name of a registered command."""
    return str(info.name or info.callback.__name__.replace("_", "-"))
