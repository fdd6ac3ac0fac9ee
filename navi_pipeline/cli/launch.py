"""Launch of the Dagster job of a command's asset in this process, followed on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from navi_core.errors import RunError
from navi_core.terminal import print_status
from navi_pipeline.lib.commands import following

if TYPE_CHECKING:
    from navi_core.config.base import Config

T = TypeVar("T")


class FailedRunError(RunError):
    """The run's op failed by its own verdict (`dagster.Failure`)."""


@dataclass(frozen=True)
class Target:
    """Dagster job of a command, with its op's run config.

    Attributes:
        job: Name of the job in the code location.
        op: Op that calls the command's function through `performed`.
        config: Run config of the op: everything that the command's options set, so that the UI can execute it again.
        partition: Partition key, added if it is dynamic; None without partitions.
        assets: The job's assets to materialize; by default all.
    """

    job: str
    op: str
    config: Mapping[str, Any] = field(default_factory=dict)
    partition: str | None = None
    assets: tuple[str, ...] | None = None


def as_run_config(config: Config) -> dict[str, Any]:
    """Return a configuration as values of a run config, which has no None."""
    return {name: value for name, value in config.model_dump(mode="json").items() if value is not None}


def launch(target: Target, function: Callable[..., T], *values: object, **callbacks: Callable[[Any], None]) -> T:
    """Call a command's function in a run of its Dagster job, and return its result.

    Without a Dagster home (`dagster_home` names the reasons) the function is called directly.

    Args:
        target: The job whose op calls the same function.
        function: The function.
        values: Its arguments.
        callbacks: Its progress functions; the run calls them beside its own.

    Raises:
        NaviError: As the function.
        FailedRunError: An op failed by its verdict.
        KeyboardInterrupt: The run was cancelled, by Ctrl-C or in the UI.
    """
    # Neither this nor Dagster is imported at the top: `navi --help` and Tab wait for every import.
    from navi_pipeline.lib.orchestration import dagster_home, open_instance

    try:
        home = dagster_home()
    except RunError as error:
        result = function(*values, **callbacks)
        print_status(f"not shown in the UI: {error}")
        return result
    import dagster as dg

    from navi_pipeline.definitions import defs
    from navi_pipeline.lib.run_launcher import run_job

    # The stages of a night leave no result: `navi pipeline nightly` reads the night.
    results: list[Any] = [None]
    with following(callbacks | {"result": results.append}), open_instance(home) as instance:
        try:
            run_job(
                instance,
                defs().resolve_job_def(target.job),
                partition=target.partition,
                assets=target.assets,
                ops={target.op: {"config": dict(target.config)}},
                report=print_status,
                follow=True,
            )
        except dg.Failure as failure:
            raise FailedRunError(str(failure.description)) from failure
    made: T = results[-1]
    return made
