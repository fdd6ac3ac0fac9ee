"""`navi bench`: command group with one subcommand per benchmark of the catalogue `navi_core.bench.BENCHMARKS`."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from navi_core.bench import BENCHMARKS
from navi_core.bench.report import Option, Report, machine
from navi_core.cli.compare import baselines
from navi_core.cli.parsing import StrictCommand
from navi_core.errors import ConfigError, RunError, did_you_mean
from navi_core.terminal import console, print_facts, print_json, print_table, progress_bar

if TYPE_CHECKING:
    from navi_core.bench.report import Table

TIME_IS_UP = 124
"""Exit code of a benchmark that timed out before its first measurement; the same as timeout(1)."""


class _Benchmarks(TyperGroup):
    """Lazy command group: imports a benchmark's module when its command runs; its help reads the catalogue alone."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 (typer's click is private)
        return [*BENCHMARKS, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 (typer's click is private)
        if cmd_name not in BENCHMARKS:
            if cmd_name not in self.commands:
                known = self.list_commands(ctx)
                hint = did_you_mean(cmd_name, known)
                raise ConfigError(f"no benchmark {cmd_name!r}; {hint}allowed: {', '.join(known)}")
            return super().get_command(ctx, cmd_name)
        place, text = BENCHMARKS[cmd_name]
        if self._listing:
            return TyperCommand(cmd_name, help=text)
        module, function = place.split(":")
        measure = getattr(importlib.import_module(f"navi_core.bench.{module}"), function)
        app = typer.Typer(add_completion=False)
        app.command(cmd_name, help=text, cls=StrictCommand)(benchmark_command(measure))
        return typer.main.get_command(app)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 (typer's click is private)
        self._listing = True
        super().format_help(ctx, formatter)


# Matrix products of small networks are too small to be shared; read when numpy loads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
app = typer.Typer(
    name="bench",
    cls=_Benchmarks,
    help="Measure this machine: rays, flight, the policy's parts, a GPU, evaluations, the coverage of an interval.",
    no_args_is_help=True,
)
app.command("baselines")(baselines)


def benchmark_command(measure: Callable[..., Report | int]) -> Callable[..., None]:
    """Build the CLI command of a benchmark function: its annotated options and `--json`.

    Args:
        measure: Returns a report, or an exit code where it prints by itself. It gets `progress`, `log` and `as_json`
            where it has such parameters.
    """
    given = inspect.signature(measure, eval_str=True).parameters
    wanted = given.keys() & {"progress", "log", "as_json"}
    options = [_typer_option(each) for name, each in given.items() if name not in wanted]
    as_json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
    options.append(inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=as_json))

    def run(as_json: bool, **chosen: Any) -> None:  # noqa: ANN401 (values by their flags)
        try:
            with progress_bar(measure.__name__, quiet=as_json or "progress" not in wanted, counted=True) as progress:
                services = {"log": partial(typer.echo, err=True), "as_json": as_json, "progress": progress}
                result = measure(**chosen, **{name: services[name] for name in wanted})
        except TimeoutError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(TIME_IS_UP) from None
        if isinstance(result, int):
            raise typer.Exit(result)
        _print(result, as_json)
        if result.failure:
            raise RunError(result.failure)

    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in options}
    return run


def _typer_option(parameter: inspect.Parameter) -> inspect.Parameter:
    """Convert a parameter annotated with a benchmark `Option` to one annotated with a typer option or argument."""
    kind, option = get_args(parameter.annotation)
    assert isinstance(option, Option)
    make = typer.Argument if option.argument else typer.Option
    flags = [] if option.flag is None else [option.flag]
    made = make(*flags, help=option.help, metavar=option.metavar, min=option.min, max=option.max)
    return parameter.replace(annotation=Annotated[kind, made], kind=inspect.Parameter.KEYWORD_ONLY)


def _print(report: Report, as_json: bool) -> None:
    if as_json:
        print_json({**report.document, **machine()})
        return
    for table in report.tables:
        if len(table.cells) == 1 and table.caption is None and _width(table) > console().width:
            print_facts(table.title, dict(zip(table.headings, table.cells[0], strict=True)))
        else:
            print_table(table.title, table.headings, table.cells, words=table.words, caption=table.caption, dense=True)
    for line in report.lines:
        typer.echo(line)


def _width(table: Table) -> int:
    """Return the printed width of a one-row table in characters: longer of heading and cell, plus 1, per column."""
    return sum(1 + max(len(heading), len(text)) for heading, text in zip(table.headings, table.cells[0], strict=True))
