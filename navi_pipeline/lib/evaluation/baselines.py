"""Scripted pilots on the test scenes, and the ranking of all subjects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.config import BASELINES, EvalConfig, config_hash
from navi_core.errors import EvaluationError
from navi_pipeline.lib.evaluation.scoring import SplitScenes, draw_flights, flown
from navi_pipeline.lib.records.documents import content_key, pipeline_folder, read_document, write_document
from navi_pipeline.lib.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from navi_core.evaluate import EvalResult

_SHOWN = ("rank", "subject", "kind", "model", "c_vis_auc_percent", "low", "high", "c_vis_percent", "c_visit_percent",
          "collisions_per_minute", "path_length_m", "scenes", "scenes_trained_on", "episodes", "decisions",
          "split")  # fmt: skip


@dataclass(frozen=True)
class Baselines:
    """What the pilots did.

    Attributes:
        results: Pilot → result.
        maps: Markdown pictures of their paths.
        reused: True if nothing was flown.
    """

    results: dict[str, EvalResult]
    maps: list[str]
    reused: bool


def fly_baselines(config: EvalConfig, *, on_line: Callable[[str], None]) -> Baselines:
    """Fly all pilots over the test scenes, each once for a protocol.

    Args:
        config: The protocol.
        on_line: Called with a line for each pilot.

    Raises:
        EvaluationError: The corpus has no test scene.
    """
    scenes = SplitScenes("test")
    if not scenes.names:
        raise EvaluationError("the corpus has no test scene; materialize scene_sources with test above 0")
    results, new = {}, False
    for pilot in BASELINES:
        results[pilot], now = flown(pilot, scenes, config)
        new |= now
        on_line(f"{pilot}: C_vis AUC {results[pilot].summary['c_vis_auc']:.1f} %{'' if now else ', flown before'}")
    maps = draw_flights(scenes, results, config, content_key("baselines", scenes.key, config_hash(config)))
    coverage = {pilot: float(result.summary["c_vis_auc"]) for pilot, result in results.items()}
    write_document(_path(), {"c_vis_auc_percent": coverage, "protocol": config.model_dump(mode="json")})
    return Baselines(results, maps, not new)


def read_baselines() -> dict[str, float]:
    """Return coverage by pilot [%].

    Raises:
        RecordError: They have not flown.
    """
    return dict(read_document(_path(), made_by="baseline_evaluation")["c_vis_auc_percent"])


def ranking() -> list[dict[str, Any]]:
    """Return the leaderboard of the course that was flown last, best first.

    A course is starts and protocol. Who was trained on its scenes comes last, with None as rank.
    """
    frame = Warehouse().query(
        "select * from leaderboard where course = (select course from leaderboard where split = 'test' "
        "order by recorded_at desc limit 1) and split = 'test' "
        "order by rank nulls last, c_vis_auc_percent desc"
    )
    rows = [{name: row[name] for name in _SHOWN} for row in frame.to_dict("records")]
    # A pilot has no version, which pandas returns as NaN.
    return [{k: (None if v is None or v != v else v) for k, v in row.items()} for row in rows]


def worth_drawing(rows: list[dict[str, Any]], most: int = 40) -> list[dict[str, Any]]:
    """Return the first rows of a ranking, and the pilots behind them: a year of nights is no picture.

    Args:
        rows: Of `ranking`.
        most: Of all subjects, before pilots are added.
    """
    return [row for place, row in enumerate(rows) if place < most or row["kind"] == "pilot"]


def _path() -> Path:
    return pipeline_folder() / "baselines.json"
