"""Dagster resources of assets and checks: Navi home, its warehouse and registry, and what runs trainings.

Functions below the assets read home and trainer as variables (`using_variables`), which hold in the run's thread alone.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from navi_core.machine import using_variables
from navi_core.machine.file_lock import hold_lock
from navi_core.record.home import navi_home
from navi_pipeline.lib.nightly.night import night_lock
from navi_pipeline.lib.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from navi_core.models import Registry


class HomeResource(dg.ConfigurableResource[Any]):
    """Navi home of a run and its child processes."""

    path: str | None = Field(default=None, description="Navi home; by default $NAVI_HOME, else ./.navi.")

    @property
    def folder(self) -> Path:
        """Absolute path of the home."""
        return Path(self.path).expanduser().absolute() if self.path else navi_home()

    @contextmanager
    def yield_for_execution(self, _: dg.InitResourceContext) -> Iterator[Any]:
        """Let the run's thread use this home until the run ends."""
        with using_variables(NAVI_HOME=str(self.folder)):
            yield self


class WarehouseResource(dg.ConfigurableResource[Any]):
    """Warehouse of the home."""

    home: dg.ResourceDependency[HomeResource]

    def open(self) -> Warehouse:
        """Return the warehouse; nothing is opened before a query."""
        return Warehouse(self.home.folder)


class RegistryResource(dg.ConfigurableResource[Any]):
    """Model registry of the home."""

    home: dg.ResourceDependency[HomeResource]

    def open(self) -> "Registry":
        """Return the registry of model versions."""
        from navi_core.models import Registry

        return Registry(self.home.folder / "models")


class TrainerResource(dg.ConfigurableResource[Any]):
    """Place where trainings and recordings of a run are executed."""

    home: dg.ResourceDependency[HomeResource]
    where: str | None = Field(
        default=None, description="child (a process) or ray (a Ray job); by default $NAVI_TRAINER, else child."
    )

    @contextmanager
    def yield_for_execution(self, _: dg.InitResourceContext) -> Iterator[Any]:
        """Let the run's thread use this trainer until the run ends."""
        with using_variables(NAVI_TRAINER=self.where):
            yield self


class NightHold(ExitStack):
    """Dagster resource that holds the lock on the night's name for the duration of a run."""

    name: str | None = None

    def take(self, context: dg.OpExecutionContext, name: str) -> None:
        """Lock the night's name and tag the run with it, once per run; a re-executed run may begin at any stage.

        Raises:
            RunError: Another process works on this night.
        """
        if self.name == name:
            return
        self.enter_context(hold_lock(night_lock(name), f"night {name}"))
        self.name = name
        # Whoever launched the run: by its tag a failure's sensor knows which night it was.
        context.instance.add_run_tags(context.run_id, {"night": name})


@dg.resource(description="The lock on the night's name, for as long as the run takes.")
def night_hold(_: dg.InitResourceContext) -> Iterator[NightHold]:
    """Yield a `NightHold` without a lock; release its lock when the run ends."""
    with NightHold() as hold:
        yield hold


def resources_of(home: str | None = None, trainer: str | None = None) -> dict[str, object]:
    """Return the resources by key.

    Args:
        home: Navi home; by default that of the run's config, else the environment's.
        trainer: child or ray; by default the environment's.
    """
    # One that a run's config may set reaches the other resources too.
    place = HomeResource(path=home) if home else HomeResource.configure_at_launch()
    return {
        "home": place,
        "warehouse": WarehouseResource(home=place),
        "registry": RegistryResource(home=place),
        "trainer": TrainerResource(home=place, where=trainer),
        "hold": night_hold,
    }


@dg.definitions
def resources() -> dg.Definitions:
    """Return the resources of the environment, whose values can be set in a run's config."""
    return dg.Definitions(resources=resources_of())
