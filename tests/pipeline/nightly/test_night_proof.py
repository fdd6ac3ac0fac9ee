"""Resume proof of a night: after an interruption, over another corpus, with the night's settings."""

import threading
from types import SimpleNamespace

import pytest

from navi_core.config import TrainConfig, config_hash, parse_config
from navi_core.errors import RunError
from navi_core.record import MetricLog, navi_home, outbox_path
from navi_pipeline.lib.corpus.scenes import write_corpus
from navi_pipeline.lib.nightly import training
from navi_pipeline.lib.nightly.night import Gate, Night
from navi_pipeline.lib.nightly.training import bounded_training, night_policy, resume_proof
from navi_pipeline.settings import NightlyConfig

CONFIG = NightlyConfig(profile="quick", viewer=False, proof_steps=(256, 512))


@pytest.fixture
def trainer(monkeypatch):
    """Fake trainer that keys runs by their settings and trains 1,024 steps a call."""

    class Trainer:
        settings, inits, fails, reported, loses = [], [], False, None, 0

        def __call__(self, config, *, asset, partition, command, on_line, **rest):
            self.settings.append(config)
            self.inits.append(command[-1])
            run_id = f"{asset}-{partition}-{config_hash(config)}"
            folder = navi_home() / "runs" / run_id / "checkpoints"
            folder.mkdir(parents=True, exist_ok=True)
            for lost in sorted(folder.iterdir())[len(list(folder.iterdir())) - self.loses :]:
                lost.unlink()
            kept = [int(file.stem[5:]) for file in folder.iterdir()]
            begun = max(kept, default=None)
            steps = (begun or 0) + 1024
            last = folder / f"step-{steps:012d}.pt"
            last.touch()
            if self.fails:
                raise RunError("the machine went down after the checkpoint")
            with MetricLog(outbox_path(), run_id, {}) as log:
                log.scalars(steps, {"sps": 900.0})
            return {"run_id": run_id, "checkpoint": str(last), "version": "v001", "steps": steps, "reward_ema": 0.0,
                    "wall_time_hours": 0.0, "reason": "SIGTERM", "resumed_from": begun, "initial": None}  # fmt: skip

    made = Trainer()
    monkeypatch.setattr("navi_pipeline.lib.nightly.training.train_in_child", made)
    monkeypatch.setattr(training, "_finite", lambda run_id: Gate("finite metrics", True, True, ""))
    return made


def corpus(*names):
    write_corpus([{"name": name, "split": "train", "gmdag": f"/scenes/{name}.gmdag"} for name in names])


def trained(trainer):
    corpus("a", "b")
    night = Night(CONFIG, "n", report=lambda line: None)
    assert night.run("training", bounded_training).status == "passed"
    return night


def test_interrupted_resume_proof_passes_on_retry(trainer):
    night = trained(trainer)
    trainer.fails = True
    assert night.run("resume_proof", resume_proof).status == "failed"
    trainer.fails = False
    again = Night(CONFIG, "n", report=lambda line: None)
    proof = again.run("resume_proof", resume_proof)
    assert proof.status == "passed", proof.gates
    # 1,024 steps of the training, 1,024 of the interrupted proof.
    assert proof.gates[0].detail == "taken up at 2,048, left at 3,072; before: 2,048"
    assert proof.data["steps"] == 4096 and "settings" not in proof.data


def test_corpus_change_keeps_the_settings_of_the_night(trainer):
    night = trained(trainer)
    corpus("a", "b", "c")
    assert night.run("resume_proof", resume_proof).status == "passed"
    assert len({config_hash(settings) for settings in trainer.settings}) == 1
    assert trainer.settings[-1].corpus.scenes == ("/scenes/a.gmdag", "/scenes/b.gmdag")
    # The night's document keeps the settings for a process that resumes the night.
    kept = Night(CONFIG, "n", report=lambda line: None).data("training")["settings"]
    assert parse_config(TrainConfig, kept) == trainer.settings[0]


def test_run_that_restarts_instead_of_resuming_fails_the_gate(trainer):
    night = trained(trainer)
    trainer.loses = 1
    proof = night.run("resume_proof", resume_proof)
    assert proof.status == "failed" and "not taken up at 1,024: the trainer began another run" in proof.gates[0].detail


def test_resume_behind_the_training_is_a_failed_gate(trainer):
    night = trained(trainer)
    (file,) = navi_home().glob("runs/*/checkpoints/*.pt")
    file.rename(file.with_name("step-000000000512.pt"))
    gate = night.run("resume_proof", resume_proof).gates[0]
    assert not gate.passed and gate.detail.endswith("before: 512, and training ended at 1,024")


def test_resume_proof_waits_for_a_trainer_that_is_ending(trainer, monkeypatch):
    night = trained(trainer)
    (file,) = navi_home().glob("runs/*/checkpoints/*.pt")
    waited = []

    def ends(run_id):
        waited.append(run_id)
        file.with_name("step-000000001536.pt").touch()
        return True

    monkeypatch.setattr("navi_pipeline.lib.nightly.training.wait_for_run", ends)
    proof = night.run("resume_proof", resume_proof)
    assert proof.status == "passed" and waited == [file.parents[1].name]
    assert proof.gates[0].detail.startswith("taken up at 1,536")


def test_run_of_another_navi_version_skips_the_proof_with_a_warning(trainer):
    night = trained(trainer)
    data = night.data("training")
    # Older code: a setting that no longer exists, and a run id of another configuration hash.
    data["settings"]["dqn"]["microbatch"] = 4
    data["run_id"] = "nightly-n-0123456789abcdef"
    proof = night.run("resume_proof", resume_proof)
    assert proof.status == "warned" and "another version of Navi" in proof.gates[0].detail
    assert len(trainer.settings) == 1 and proof.data["steps"] == 1024


def test_hanging_viewer_warns_and_does_not_hold_up_the_night(trainer, monkeypatch):
    hangs = threading.Event()
    monkeypatch.setattr(training, "probe_viewer", lambda *_: hangs.wait(60.0))
    monkeypatch.setattr(training, "_END_SECONDS", 0.1)
    corpus("a")
    night = Night(CONFIG.model_copy(update={"viewer": True}), "n", report=lambda line: None)
    stage = night.run("training", bounded_training)
    hangs.set()
    assert stage.status == "warned" and night.warnings[0].name == "viewer"
    assert night.warnings[0].detail == "no result 0.1 s after the training"


def test_evaluation_without_a_proof_uses_the_trained_policy(trainer, monkeypatch):
    night = trained(trainer)
    monkeypatch.setattr("navi_core.models.load_checkpoint", lambda path: SimpleNamespace(weights_hash="w"))
    policy = night_policy(night)
    assert (policy["steps"], policy["weights_hash"]) == (1024, "w") and "settings" not in policy
