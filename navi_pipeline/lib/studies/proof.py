"""Proof of a study: its best settings against its preset on fresh seeds, by a paired interval over these."""

from collections.abc import Sequence
from typing import Any

from navi_core.config import TrainConfig, config_hash
from navi_pipeline.lib.experiments.ablations import train_cell
from navi_pipeline.lib.experiments.cells import Cell, CellError, Measurement, Outcome
from navi_pipeline.lib.experiments.perform import Experiment
from navi_pipeline.lib.experiments.variants import BASE
from navi_pipeline.lib.experiments.verdicts import CLAIM_SEEDS, Summary, by_level, level_rows, paired_difference
from navi_pipeline.lib.records import content_key, pipeline_folder, pipeline_log, write_document
from navi_pipeline.lib.studies.catalogue import trial_config
from navi_pipeline.lib.studies.results import pick_trial
from navi_pipeline.lib.studies.trial_queue import TrialQueue, read_study
from navi_pipeline.lib.studies.worker import trial_command
from navi_pipeline.lib.training.run_curve import RunCurve
from navi_pipeline.settings import StudyConfig

_ASSET = "proof"
"""Asset name in the keys of the cells' runs."""
_BEST = "best"
_TIMEOUT = 86_400.0


def proof_experiment(name: str, seeds: int = CLAIM_SEEDS) -> Experiment:
    """Return the experiment that compares the best settings of a study with its preset.

    Args:
        name: A study of this home.
        seeds: Training seeds; they follow the study's own, so no trial has seen them.

    Raises:
        ConfigError: The study's preset differs from when it began.
        RecordError: There is no such study.
        RunError: The study has no complete and feasible trial.
    """
    with TrialQueue(read_study(name)) as queue:
        queue.require_same_settings()
        best, config = pick_trial(queue), queue.config
    sides = {_BEST: best.params, BASE: {}}
    metric = config.objectives[0].metric
    cells = [
        _cell(config, level, trial_config(config, params), repeat)
        for repeat in range(1, seeds + 1)
        for level, params in sides.items()
    ]
    return Experiment(
        name=f"proof-{name}",
        title=f"Proof of study {name}",
        question=f"Are the best settings of study {name} (trial {best.number}) better than its preset in {metric}?",
        shown=(metric,),
        cells=cells,
        config=config,
        timeout=config.timeout or _TIMEOUT,
        page=f"proof-{name}",
        document=pipeline_folder() / "proofs" / f"{name}.result.json",
        summarise=lambda outcomes, whole: _summary(config, best.number, outcomes, whole=whole),
    )


def _cell(config: StudyConfig, level: str, train: TrainConfig, repeat: int) -> Cell:
    settings = train.model_copy(update={"seed": train.seed + repeat})
    objective, command = config.objectives[0], trial_command(config)
    key = content_key(_ASSET, command, settings.model_dump(mode="json"), objective.model_dump())

    def measure(measurement: Measurement) -> None:
        file = pipeline_folder() / "proofs" / f"{key}.settings.json"
        write_document(file, settings.model_dump(mode="json"))
        result = train_cell(measurement, "train", _ASSET, key, *command, "--config", str(file), "--json")
        curve = RunCurve(str(result["run_id"]))
        curve.recall()
        value = curve.figure(objective, result)
        if value is None:
            raise CellError("crash", f"the run has no finite {objective.metric}")
        measurement.outcome.checkpoint = str(result["checkpoint"])
        measurement.outcome.metrics |= {"steps": float(result["steps"]), objective.metric: value}

    return Cell(
        factors={"variant": level, "seed": settings.seed},
        file=pipeline_folder() / "proofs" / f"{key}.json",
        measure=measure,
        benchmark=f"proof-{config.name}",
        run_id=f"proof-{config.name}-{key}",
        parameters={"study": config.name, "preset": config.preset},
        config_hash=config_hash(settings),
    )


def _summary(config: StudyConfig, trial: int, outcomes: Sequence[Outcome], *, whole: bool) -> Summary:
    """Summarise a proof; once all cells are measured, record the comparison as a row of `comparisons`."""
    objective = config.objectives[0]
    levels, rows = by_level(outcomes, objective.metric), level_rows(outcomes, (objective.metric, "cpu_minutes"))
    best, base = levels.get(_BEST, {}), levels.get(BASE, {})
    found = paired_difference(best, base)
    if found is None or not whole:
        return Summary(rows, ["There is no verdict before all cells are measured, and at least two pairs."])
    ahead, behind = found.low > 0, found.high < 0
    if objective.direction == "minimize":
        ahead, behind = behind, ahead
    enough = found.episodes >= CLAIM_SEEDS
    words = "better than" if enough and ahead else "worse than" if enough and behind else "not shown to be better than"
    few = "" if enough else f" ({CLAIM_SEEDS} seeds are needed for a verdict)"
    preset = config.preset or "the defaults"
    sentence = (
        f"Study {config.name}: trial {trial} is {words} {preset} in {objective.metric}{few}: difference "
        f"{found.mean:+.4g} [{found.low:+.4g}, {found.high:+.4g}], 95 % paired interval over {found.episodes} "
        "fresh seeds."
    )
    pairs = sorted(best.keys() & base.keys())
    runs = {"a": _runs(outcomes, _BEST, pairs), "b": _runs(outcomes, BASE, pairs)}
    row: dict[str, Any] = {
        "comparison_id": content_key(runs),
        "metric": objective.metric,
        "a": f"study {config.name}, trial {trial}",
        "b": preset,
        "task": config.settings.get("task"),
        "over": "seeds",
        "mean_a": sum(best[seed] for seed in pairs) / len(pairs),
        "mean_b": sum(base[seed] for seed in pairs) / len(pairs),
        "mean_difference": found.mean,
        "low": found.low,
        "high": found.high,
        "degrees_of_freedom": float(found.episodes - 1),
        "better": enough and ahead,
        "worse": enough and behind,
        "seeds": found.episodes,
        "sentence": sentence,
        "evaluations": runs,
    }
    with pipeline_log(f"proof-{config.name}", config_hash=config_hash(config)) as log:
        log.row("comparisons", row)
    label = f"difference to {preset} in {objective.metric}, 95 % interval over seeds"
    return Summary(rows, [sentence], differences=[(_BEST, found.mean, found.low, found.high)], label=label)


def _runs(outcomes: Sequence[Outcome], level: str, seeds: Sequence[int]) -> list[str]:
    """Return the run ids of a side, by seed."""
    runs = {outcome.seed: outcome.run_id for outcome in outcomes if outcome.level == level}
    return [runs[seed] for seed in seeds]
