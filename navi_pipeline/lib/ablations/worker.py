"""A cell in a process of its own, whose children are this cell's alone (`python -m … NAME VARIANT SEED SETTINGS`)."""

import json
import signal
import sys
from collections.abc import Callable

from navi_core.config import parse_config
from navi_core.errors import NaviError, RunError
from navi_core.terminal import print_status
from navi_pipeline.lib.ablations.catalogue import Variant, find_variants
from navi_pipeline.lib.ablations.cell import CellOutcome, known_outcome, run_cell
from navi_pipeline.lib.training.supervised import run_supervised
from navi_pipeline.settings.ablations import AblationConfig

_GRACE = 60.0
"""Time that a cell's process has to end [s]: its trainer is given 30 s for a checkpoint."""


def run_cell_in_child(
    name: str, variant: Variant, config: AblationConfig, seed: int, *, stop: Callable[[], bool]
) -> CellOutcome:
    """Measure a cell in a child, which ends with this process or on request.

    Args:
        name: Of the ablation.
        variant: What is changed.
        config: What the cells share.
        seed: Of the training.
        stop: Asked twice a second; once it answers True the child ends, and its trainer writes a checkpoint.

    Raises:
        RunError: The child ended before the cell had an outcome.
    """
    cell = [name, variant.name, str(seed), config.model_dump_json()]
    command = [sys.executable, "-m", "navi_pipeline.lib.ablations.worker", *cell]
    code, _, last = run_supervised(command, on_line=lambda _: None, grace_seconds=_GRACE, stop=stop)
    outcome = known_outcome(variant, config, seed)
    if outcome is None:
        raise RunError(
            f"cell {variant.name}/seed{seed} of ablation {name} ended with exit code {code} before it had an outcome; "
            "the same command goes on with it; its last lines:\n" + "\n".join(last)
        )
    return outcome


def main(name: str, variant: str, seed: str, settings: str) -> int:
    """Measure one cell of this home ; on SIGTERM it ends its command first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        config = parse_config(AblationConfig, json.loads(settings))
        found = next(one for one in find_variants([variant], config.variants) if one.name == variant)
        run_cell(name, found, config, int(seed), on_line=print_status)
    except NaviError as error:
        print_status(f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
