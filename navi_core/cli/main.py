"""Entry points of the `navi` command: assemble the command groups, report errors without a traceback.

A group is a module with `register(app)`. The engine's groups are listed here; other packages add
theirs through the entry point group `navi.commands`.
"""

import errno
import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import entry_points

# Idle OpenMP threads must not spin: the ray kernels and torch take turns on the same cores. Read by
# the OpenMP runtime when torch loads, so it is set before any command imports torch.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import typer

from navi_core import __version__
from navi_core.cli.aliases import actor_arguments, brain_arguments
from navi_core.cli.parsing import StrictCommand, make_strict
from navi_core.errors import NaviError, printable

_GROUPS = (
    "scenes", "doctor", "settings", "demos", "training.bc", "training.train", "training.train:apex_app", "evaluate",
    "compare", "models:models_app", "models:runs_app", "models", "pages", "serve", "bench",
)  # fmt: skip
"""Command groups: modules of `navi_core.cli` with a Typer `app`; another attribute's name follows a colon."""


def build_app(
    name: str = "navi",
    groups: Sequence[str] = _GROUPS,
    *,
    plugins: bool = True,
    title: str = "Meshes in, a measured and promoted navigation policy out.",
) -> typer.Typer:
    """Build the Typer application from the given command groups and, for `navi`, those of other packages.

    Args:
        name: Name shown in the help.
        groups: As `_GROUPS`.
        plugins: Add the commands of the entry point group `navi.commands`.
        title: First line of the help.
    """
    app = typer.Typer(
        name=name,
        help=title,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for group in groups:
        module, _, name = group.partition(":")
        found: typer.Typer = getattr(importlib.import_module(f"navi_core.cli.{module}"), name or "app")
        if found.info.name:
            app.add_typer(found)
        else:
            app.registered_commands += found.registered_commands
    if plugins:
        for entry in sorted(entry_points(group="navi.commands"), key=lambda e: e.name):
            entry.load()(app)
    make_strict(app)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `navi`; exits with the exit code of a raised error."""
    _run(build_app(), arguments)


def navi_actor(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `navi-actor`: training and the policy server under the source system's name."""
    from navi_core.cli.serve import serve

    title = "Train a policy (`navi-actor train`: PPO until it is stopped) or serve one (`navi-actor serve`)."
    app = build_app("navi-actor", ("training.train",), plugins=False, title=title)
    app.command("serve", cls=StrictCommand)(serve)
    _run(app, actor_arguments(sys.argv[1:] if arguments is None else arguments))


def brain(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `brain`: the policy server, and the registry's commands under the source system's name."""
    from navi_core.cli import compare, evaluate, serve
    from navi_core.cli.training.bc import bc

    title = "Serve the champion (`brain` alone), and register, promote, evaluate, compare or clone policies."
    app = build_app("brain", ("models:models_app",), plugins=False, title=title)
    for name, panel, command in (
        ("promote", None, evaluate.promote),
        ("serve", "Flying", serve.serve),
        ("evaluate", "Flying", evaluate.evaluate),
        ("compare", "Flying", compare.compare),
        ("bc-pretrain", "Learning", bc),
    ):
        app.command(name, cls=StrictCommand, rich_help_panel=panel)(command)
    _run(app, brain_arguments(sys.argv[1:] if arguments is None else arguments))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _root(
    # Its own callback: that of the group is not called where no command follows.
    version: bool = typer.Option(
        False, "--version", help="Print the version and leave.", is_eager=True, callback=_print_version
    ),
) -> None:
    del version


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """Warning handler (`warnings.showwarning`): print a warning as one line on stderr, without its source location."""
    typer.echo(f"warning: {printable(str(message))}", err=True)


def _run(app: typer.Typer, arguments: Sequence[str] | None) -> None:
    # A name that the terminal's encoding lacks is shown escaped; it is no reason to lose the answer.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.showwarning = _warn
    try:
        app(args=list(arguments) if arguments is not None else None)
    except NaviError as error:
        typer.echo(f"error: {printable(str(error), keep=chr(10))}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        # Rooms name their own faults; what is left is the system's: a full disk, a path too long, no permission.
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"error: {printable(f'{where}{error.strerror or error}')}", err=True)
        sys.exit(1)
    except MemoryError as error:
        typer.echo(f"error: not enough memory{f' ({error})' if str(error) else ''}; choose smaller sizes", err=True)
        sys.exit(errno.ENOMEM)


if __name__ == "__main__":
    main()
