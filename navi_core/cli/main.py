"""Entry points of the `navi` command: assemble the command groups, report errors without a traceback.

A group is a module with `register(app)`. The engine's groups are listed here; other packages add
theirs through the entry point group `navi.commands`.
"""

import errno
import importlib
import io
import os
import shutil
import sys
import textwrap
import threading
import warnings
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

# Idle OpenMP threads must not spin: the ray kernels and torch take turns on the same cores. Read by
# the OpenMP runtime when torch loads, so it is set before any command imports torch.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import typer

from navi_core import __version__
from navi_core.cli.aliases import actor_arguments, brain_arguments
from navi_core.cli.catalogue import RootGroup, arrange, copy_groups
from navi_core.cli.parsing import StrictCommand, make_strict
from navi_core.errors import NaviError, did_you_mean, printable

_GROUPS = ("scenes", "doctor", "settings", "demos", "training.bc", "evaluate", "compare", "models", "runs", "pages",
           "serve", "bench")  # fmt: skip
"""Command groups: modules of `navi_core.cli` with a Typer `app`, which is a group where it has a name."""


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
        cls=RootGroup if name == "navi" else None,
        help=title,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for group in groups:
        found: typer.Typer = importlib.import_module(f"navi_core.cli.{group}").app
        if found.info.name:
            app.add_typer(found)
        else:
            app.registered_commands += found.registered_commands
    # Packages may add to the engine's groups when they are imported; these groups are copied behind that.
    entries = sorted(entry_points(group="navi.commands"), key=lambda e: e.name) if plugins else []
    registers = [entry.load() for entry in entries]
    copy_groups(app)
    for register in registers:
        register(app)
    if name == "navi":
        arrange(app)
    make_strict(app)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `navi`; exits with the exit code of a raised error."""
    _run(build_app(), arguments)


def navi_actor(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `navi-actor`: training and the policy server under the source system's name."""
    from navi_core.cli.serve import serve

    title = "Train a policy (`navi-actor train`: PPO until it is stopped) or serve one (`navi-actor serve`)."
    app = build_app("navi-actor", ("training.bc",), plugins=False, title=title)
    app.command("serve", cls=StrictCommand)(serve)
    _run(app, actor_arguments(sys.argv[1:] if arguments is None else arguments))


def brain(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `brain`: the policy server, and the registry's commands under the source system's name."""
    from navi_core.cli import compare, evaluate, serve
    from navi_core.cli.training.bc import bc

    title = "Serve the champion (`brain` alone), and register, promote, evaluate, compare or clone policies."
    app = build_app("brain", ("models",), plugins=False, title=title)
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


def _print_thread_fault(fault: threading.ExceptHookArgs) -> None:
    """Thread error handler: a fault of the system is one line (of a full disk in TensorBoard's thread)."""
    if isinstance(fault.exc_value, OSError):
        _print_error(str(fault.exc_value))
    else:
        threading.__excepthook__(fault)


_UsageError: Any = next(each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException")
"""Base class of typer's errors of command lines, which it keeps private."""


def _usage_message(error: Any) -> str:  # noqa: ANN401 (typer's click is private)
    """Return the message of a mistaken command line in the style of all errors: what is wrong, what was meant, next."""
    message = error.format_message()
    if known := getattr(error, "possibilities", None):
        message = f"{error.message.rstrip('.')}; {did_you_mean(error.option_name, known)}"
        others = ", ".join(sorted(known))
        message += f"like it: {others}" if len(known) > 1 else ""
    context = getattr(error, "ctx", None)
    message = (message[:1].lower() + message[1:]).replace(". Did you mean", "; did you mean").rstrip(". ;")
    joint = " " if message.endswith("?") else "; "
    return f"{message}{joint}next: {context.command_path} --help" if context is not None else message


def _print_error(message: str) -> None:
    """Print an error on standard error: on a terminal in colour and broken between words, else as one line."""
    text = printable(message, keep="\n")
    if not sys.stderr.isatty():
        typer.echo(f"error: {text}", err=True)
        return
    width = max(shutil.get_terminal_size().columns, 20)
    lines = [
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        for line in f"error: {text}".split("\n")
    ]
    lines[0] = typer.style("error:", fg=None if os.environ.get("NO_COLOR") else "red") + lines[0].removeprefix("error:")
    typer.echo("\n".join(lines), err=True)


def _run(app: typer.Typer, arguments: Sequence[str] | None) -> None:
    # A name that the terminal's encoding lacks is shown escaped; it is no reason to lose the answer.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.showwarning = _warn
    threading.excepthook = _print_thread_fault
    try:
        code = app(
            args=list(arguments) if arguments is not None else None, standalone_mode=False, prog_name=app.info.name
        )
        sys.exit(code if isinstance(code, int) else 0)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            _print_error(_usage_message(error))
        sys.exit(error.exit_code)
    except typer.Abort:
        _print_error("aborted")
        sys.exit(1)
    except NaviError as error:
        _print_error(str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        # Rooms name their own faults; what is left is the system's: a full disk, a path too long, no permission.
        where = f"{error.filename}: " if error.filename else ""
        _print_error(f"{where}{error.strerror or error}")
        sys.exit(1)
    except MemoryError as error:
        _print_error(f"not enough memory{f' ({error})' if str(error) else ''}; choose smaller sizes")
        sys.exit(errno.ENOMEM)


if __name__ == "__main__":
    main()
