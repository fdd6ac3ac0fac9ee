"""Hyperband pruner over slots, independent of interruptions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from optuna.pruners import HyperbandPruner

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial


class SlotHyperband(HyperbandPruner):
    """Optuna's pruner, whose brackets are of slots; an attempt that was lost competes with nobody.

    Optuna draws a trial's bracket from its number, which another attempt at the same slot has not, lets failed trials
    compete, and knows no brackets before a process has asked for the first time.
    """

    def _get_bracket_id(self, study: Study, trial: FrozenTrial) -> int:
        if not self._pruners:
            self._try_initialization(study)
        if trial.user_attrs.get("outcome") == "lost":
            return -1
        slot: Any = SimpleNamespace(number=trial.user_attrs.get("slot", trial.number))
        return super()._get_bracket_id(study, slot)
