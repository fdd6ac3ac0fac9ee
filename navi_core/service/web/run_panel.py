"""State of the dashboard's training page: history and progress of the watched run, and a run to compare it with."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from navi_core.errors import ConfigError, NaviError
from navi_core.models import Registry
from navi_core.record import navi_home
from navi_core.record.run_history import RunHistory, listed_runs
from navi_core.record.thinned_curve import ThinnedCurve
from navi_core.service.viewing.digest import Digest
from navi_core.service.viewing.meanings import meaning_of
from navi_core.service.web.hub import Hub

CHAMPION = "champion"
_TEXTS = {
    "finished": "finished at decision {step:,}",
    "stopped": "stopped at decision {step:,}: run the same command again",
    "crashed": "stopped unexpectedly at decision {step:,}: run the same command again",
    "refused": "refused before its training began: its command printed the reason",
}
"""Text of the status badge by the state of a run that publishes nothing any more."""


class RunPanel:
    """Backend of the training page of one run.

    Args:
        hub: Hub of the viewers.

    Attributes:
        facts: As `RunHistory.facts`; empty where no run is watched or its folder is missing.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.facts: dict[str, Any] = {}
        self.runs: dict[str, str | None] = {}
        """Runs of the Navi home with their states, the last written first."""
        self._watched: RunHistory | None = None
        self._other: RunHistory | None = None
        self._other_key: str | None = None

    def watch(self, run_id: str | None) -> None:
        """Watch another run, or none."""
        self.facts, self._watched = {}, None if run_id is None else RunHistory.of(run_id)
        self.compare_with(None)

    def compare_with(self, key: str | None) -> None:
        """Compare with a run, with the champion's, or with none (None).

        Raises:
            ConfigError: There is no such run.
        """
        run_id = key
        if key == CHAMPION:
            run_id = None
            with suppress(NaviError):
                run_id = Registry(navi_home() / "models").resolve(CHAMPION).run_id
        if key is not None and (run_id is None or not RunHistory.of(run_id).folder.is_dir()):
            raise ConfigError(f"no curve of {key[:80]!r}: its folder is not in {navi_home() / 'runs'}")
        self._other_key, self._other = key, None if run_id is None else RunHistory.of(run_id)
        self._hub.forget("other")
        self._hub.send("other", {"key": None, "name": None, "steps": [], "series": {}})

    def read(self, *, viewers: bool) -> bool:
        """Read the folders of the runs; return whether the watched curve grew. Without viewers only its state is read.

        Args:
            viewers: Whether a page is open.
        """
        self.runs = listed_runs()
        if self._watched is None or not self._watched.folder.is_dir():
            return False
        grew = viewers and self._watched.read()
        if viewers and self._other is not None:
            self._other.read()
        self.facts = self._watched.facts()
        return grew

    def send(self) -> None:
        """Send the facts of the run, and the other curve."""
        choices = [run for run in self.runs if run != self.facts.get("run")]
        self._hub.send_change("run", {**self.facts, "choices": choices, "other": self._other_key})
        if self._other is not None:
            curve = self._other.curve
            facts = {"key": self._other_key, "name": self._other.folder.name, "steps": curve.steps}
            self._hub.send_change("other", facts | {"series": curve.series})

    def training(self, digest: Digest) -> dict[str, Any]:
        """Return the training message: the run's curve until the last row read, then what was heard since."""
        steps, series = joined(None if self._watched is None else self._watched.curve, digest.curve)
        sps = digest.perf.get("sps")
        return {
            "steps": steps,
            "series": {name: values for name, values in series.items() if name != "updates"},
            "meanings": {name: meaning_of(name) for name in series},
            "stages": digest.stages(),
            "facts": f"{len(steps)} points" if steps else "",
            "throughput": f"{sps:,.0f} decisions a second" if sps is not None else "",
        }

    def ended(self) -> tuple[str, str] | None:
        """Return phase and text of the badge of a run that has ended; None for one that runs or is not known."""
        state = self.facts.get("state")
        return (state, _TEXTS[state].format(**self.facts)) if state in _TEXTS else None


def joined(history: ThinnedCurve | None, live: ThinnedCurve) -> tuple[list[float], dict[str, list[float | None]]]:
    """Join a run's curve with the later points of what was heard; None where one lacks a metric."""
    if history is None or not history.steps:
        return live.steps, live.series
    steps, heard = history.steps, live.steps
    later = [n for n, step in enumerate(heard) if step > steps[-1]]
    kept, new = history.series, live.series
    none: list[float | None] = [None] * max(len(steps), len(heard))
    series = {
        name: [*kept.get(name, none[: len(steps)]), *(new.get(name, none)[n] for n in later)]
        for name in dict.fromkeys((*kept, *new))
    }
    return [*steps, *(heard[n] for n in later)], series
