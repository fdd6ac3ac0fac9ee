"""What an evaluation concluded, handed from `policy_evaluation` to its checks, the promotion and the demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.config import EvalConfig
from navi_pipeline.lib.records.documents import pipeline_folder, read_document, write_document

if TYPE_CHECKING:
    from navi_pipeline.lib.evaluation.scoring import Score

__all__ = ["read_verdict", "write_verdict"]


def write_verdict(
    profile: str, policy: dict[str, Any], test: Score, external: Score | None, config: EvalConfig
) -> None:
    """Write tables and comparisons of an evaluation.

    Args:
        profile: Training profile.
        policy: Document of the policy that flew.
        test: Its score on the test scenes.
        external: Its score on the user's scenes, if there are any.
        config: The protocol.
    """
    from navi_pipeline.lib.evaluation.scoring import comparison_row, summary_rows

    def part(score: Score) -> dict[str, Any]:
        return {
            "table": summary_rows(score),
            "comparisons": {
                pilot: {metric: comparison_row(value) for metric, value in metrics.items()}
                for pilot, metrics in score.comparisons.items()
            },
            "scenes": len(next(iter(score.results.values())).scenes),
            "episodes": len(next(iter(score.results.values())).episodes),
            "reused": score.reused,
        }

    document = {
        "profile": profile,
        "policy": policy,
        "config": config.model_dump(mode="json"),
        "test": part(test),
        "external": None if external is None else part(external),
    }
    write_document(_path(profile), document)


def read_verdict(profile: str) -> dict[str, Any]:
    """Return the conclusions of a profile's latest evaluation.

    Raises:
        RecordError: The policy has not been evaluated.
    """
    return read_document(_path(profile), made_by=f"policy_evaluation, partition {profile},")


def _path(profile: str) -> Path:
    return pipeline_folder() / "verdicts" / f"{profile}.json"
