"""Tiny runs of the profile's assets through Dagster, shared by tests: real children, two updates of training."""

from dataclasses import dataclass

import dagster as dg
import pytest

from navi_core.presets import load_preset
from navi_pipeline.definitions import defs
from navi_pipeline.defs.partitions import register_policy
from navi_pipeline.lib.corpus.demonstrations import take_recordings
from navi_pipeline.lib.corpus.scenes import as_rows, compile_source, corpus_rows, plan_path, plan_scenes, write_corpus
from navi_pipeline.lib.records import write_document
from navi_pipeline.lib.run_launcher import run_job
from tests.pipeline.empty_warehouse import start_warehouse

FLIGHT = {"starts": 2, "max_steps": 20}
TINY = {
    "ACTORS": 4,
    "THREADS": 1,
    "PPO__ROLLOUT": 32,
    "GRPO__GROUP_SIZE": 4,
    "DPO__ROLLOUT": 32,
    "DPO__HORIZON": 8,
    "DQN__ROLLOUT": 32,
    "DQN__LEARNING_STARTS": 128,
    "DQN__BPTT": 8,
    "DQN__BURN_IN": 0,
    "REPLAY__BATCH_SIZE": 64,
}


@dataclass
class Runs:
    """Runs that make assets of two kinds of partitions, examined as one."""

    runs: list

    @property
    def success(self):
        return all(run.success for run in self.runs)

    def events(self, name):
        return [event for run in self.runs for event in getattr(run, name)()]


def run_twice(root, assets, settings, seed=3):
    """Materialize assets of the profile quick twice in a Navi home of their own; return both results.

    Args:
        root: The home.
        assets: Names.
        settings: Configuration of an asset by name.
        seed: Seed of the policies.
    """
    with pytest.MonkeyPatch.context() as patch, dg.DagsterInstance.ephemeral() as instance:
        patch.setenv("NAVI_HOME", str(start_warehouse(root)))
        patch.delenv("NAVI_SCENES", raising=False)
        # A tiny run: 4 rows × 32 decisions, two updates. The environment is one of the sources of settings.
        for name, value in TINY.items():
            patch.setenv(f"NAVI_{name}", str(value))
        sources = plan_scenes("apartment", {"train": 1, "test": 2})
        write_document(plan_path(), {"sources": as_rows(sources)})
        for source in sources:
            compile_source(source, load_preset("quick").compile)
        write_corpus(corpus_rows())
        take_recordings()
        partitions = {"demonstrations_job": "quick", "profile_job": register_policy(instance, "quick", seed)}

        def run(job, partition):
            definition = defs().resolve_job_def(job)
            chosen = [name for name in assets if dg.AssetKey(name) in definition.asset_layer.executable_asset_keys]
            ops = {name: {"config": settings[name]} for name in chosen if name in settings}
            return chosen and run_job(instance, definition, partition=partition, assets=chosen, ops=ops)

        return [Runs(list(filter(None, (run(*each) for each in partitions.items())))) for _ in range(2)]


def made(result):
    """Return the materializations of a run by asset."""
    return {
        e.materialization.asset_key.to_user_string(): e.materialization
        for e in result.events("get_asset_materialization_events")
    }


def checks(result):
    """Return the check evaluations of a run by name."""
    return {e.check_name: e for e in result.events("get_asset_check_evaluations")}


def failures(result):
    """Return why steps of a run failed, by step."""
    return {e.step_key: str(e.step_failure_data.error)[:2000] for e in result.events("get_step_failure_events")}
