"""Tiny runs of the profile's assets through Dagster, shared by tests: real children, two updates of training."""

import dagster as dg
import pytest

from navi_core.presets import load_preset
from navi_pipeline.definitions import defs
from navi_pipeline.lib.corpus.demonstrations import take_recordings
from navi_pipeline.lib.corpus.scenes import as_rows, compile_source, corpus_rows, plan_path, plan_scenes, write_corpus
from navi_pipeline.lib.records import write_document

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
FLIGHT = {"starts": 2, "max_steps": 20}


def run_twice(root, assets, settings):
    """Materialize assets of the profile quick twice in a Navi home of their own; return both results.

    Args:
        root: The home.
        assets: Names.
        settings: Configuration of an asset by name.
    """
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.ephemeral() as instance:
        patch.setenv("NAVI_HOME", str(root))
        patch.delenv("NAVI_SCENES", raising=False)
        # A tiny run: 4 rows × 32 decisions, two updates. The environment is one of the sources of settings.
        for name, value in {"ACTORS": 4, "PPO__ROLLOUT": 32, "THREADS": 1, "GRPO__GROUP_SIZE": 4}.items():
            patch.setenv(f"NAVI_{name}", str(value))
        sources = plan_scenes("apartment", {"train": 1, "test": 2})
        write_document(plan_path(), {"sources": as_rows(sources)})
        for source in sources:
            compile_source(source, load_preset("quick").compile)
        write_corpus(corpus_rows())
        take_recordings()
        job = defs().resolve_job_def("profile_job")
        return [
            job.execute_in_process(
                instance=instance,
                partition_key="quick",
                run_config=QUIET | {"ops": {name: {"config": value} for name, value in settings.items()}},
                asset_selection=[dg.AssetKey(name) for name in assets],
                raise_on_error=False,
            )
            for _ in range(2)
        ]


def made(result):
    """Return the materializations of a run by asset."""
    return {
        e.materialization.asset_key.to_user_string(): e.materialization
        for e in result.get_asset_materialization_events()
    }


def checks(result):
    """Return the check evaluations of a run by name."""
    return {e.check_name: e for e in result.get_asset_check_evaluations()}


def failures(result):
    """Return why steps of a run failed, by step."""
    return {e.step_key: str(e.step_failure_data.error)[:2000] for e in result.all_events if e.is_step_failure}
