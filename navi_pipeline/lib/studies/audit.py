"""Audit of a finished study: lost, doubled or changed trials."""

from collections.abc import Collection, Sequence
from typing import Any

from navi_core.config import TrainConfig, config_hash, parse_config
from navi_pipeline.lib.studies.spaces import search_space
from navi_pipeline.lib.studies.trial import partition_of
from navi_pipeline.settings.studies import StudyConfig


def audit_faults(
    config: StudyConfig, rows: Sequence[dict[str, Any]], partitions: Collection[str] | None = None
) -> list[str]:
    """Return what is wrong with a finished study; nothing, if it is as it should be.

    Args:
        config: Of the study.
        rows: All its trials as rows of `trials`, attempts that were lost too.
        partitions: Partitions of the asset `trial` that Dagster knows; None does not look at them.
    """
    faults = []
    latest = {row["slot"]: row for row in sorted(rows, key=lambda row: row["trial"]) if row["slot"] is not None}
    if sorted(latest) != list(range(config.trials)):
        faults.append(f"slots {sorted(latest)} instead of 0 … {config.trials - 1}")
    done = [row["slot"] for row in rows if row["state"] in ("complete", "pruned")]
    faults += [f"slot {slot} counts {done.count(slot)} times" for slot in sorted(set(done)) if done.count(slot) > 1]
    for slot, row in sorted(latest.items()):
        if row["state"] not in ("complete", "pruned"):
            faults.append(f"slot {slot} is {row['state']}: {row['reason']}")
            continue
        if config_hash(parse_config(TrainConfig, row["config"])) != row["config_hash"]:
            faults.append(f"slot {slot}: its configuration is another than its run's")
        if not str(row["run_id"]).endswith(str(row["config_hash"])) or not row["step"] or row["reward_ema"] is None:
            faults.append(f"slot {slot}: its run or its metrics are missing")
        if partitions is not None and partition_of(config.name, slot) not in partitions:
            faults.append(f"slot {slot} has no partition of the asset trial")
    return faults + _retry_faults(config, rows)


def _retry_faults(config: StudyConfig, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the faults of trials that take up lost ones."""
    faults = []
    by_number, space = {row["trial"]: row for row in rows}, search_space(config).keys()
    for row in rows:
        before = by_number.get(row["retry_of"])
        if row["retry_of"] is None:
            continue
        if before is None or before["state"] != "failed" or before["slot"] != row["slot"]:
            faults.append(f"trial {row['trial']} takes up trial {row['retry_of']}, which was not lost")
        # One that was lost between two draws is drawn anew: nothing had been trained.
        elif before["params"].keys() >= space and not row["params"].items() <= before["params"].items():
            faults.append(f"trial {row['trial']} took up trial {row['retry_of']} with other settings")
    return faults
