"""The registry: numbering, idempotence, aliases, rollback, lineage, and its command."""

import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.config import RewardConfig, ShaperConfig
from navi_core.config.world import GoalConfig
from navi_core.errors import CheckpointError, RegistryError
from navi_core.models import Registry, load_checkpoint, load_policy
from navi_core.models import registry as registry_module
from navi_core.models.lineage import same_rewards


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "models")


def test_versions_are_numbered_and_keep_their_metadata(registry, make_checkpoint):
    first = registry.register(make_checkpoint("a.pt", training_source="bc"), notes="cloned", tags=("bc", "null"))
    second = registry.register(
        make_checkpoint("b.pt", seed=1), parents=[first], metrics={"c_vis_auc": 0.8, "spl": None}
    )
    assert (first, second) == ("v001", "v002")
    entry = registry.resolve("v002")
    assert entry.parents == ("v001",) and entry.metrics == {"c_vis_auc": 0.8, "spl": None}
    assert entry.path == registry.path / "v002.pt" and entry.run_id == "ppo-demo-0123"
    assert registry.resolve("v001").tags == ("bc", "null") and registry.resolve("v001").notes == "cloned"
    policy, checkpoint = load_policy(entry.path)
    assert checkpoint.weights_hash == entry.weights_hash and policy.config.core == entry.temporal_core
    assert [e.version for e in registry.list()] == ["v001", "v002"]


def test_repeated_registration_of_the_same_run_changes_nothing(registry, make_checkpoint):
    registry.register(make_checkpoint("a.pt"))
    before = (registry.path / "registry.json").read_bytes()
    assert registry.register(make_checkpoint("copy.pt", wall_time_hours=1.0), notes="again") == "v001"
    assert (registry.path / "registry.json").read_bytes() == before
    assert registry.register(make_checkpoint("b.pt", run_id="another")) == "v002"


def test_latest_moves_only_when_reward_ema_exceeds_it(registry, make_checkpoint):
    for i, (reward, latest) in enumerate(
        [(float("nan"), "v001"), (0.5, "v002"), (0.5, "v002"), (0.4, "v002"), (float("nan"), "v002"), (0.6, "v006")]
    ):
        registry.register(make_checkpoint(f"{i}.pt", seed=i, reward_ema=reward))
        assert registry.resolve("latest").version == latest
    assert registry.resolve("v001").reward_ema is None
    assert "champion" not in registry.aliases()


def test_leftovers_of_a_killed_registration_are_removed(registry, make_checkpoint):
    registry.register(make_checkpoint())
    # An export may be written into the folder without its lock.
    for name, age in ((".v002.pt.77.tmp", 7200), (".champion.safetensors.78.tmp", 0)):
        (registry.path / name).write_bytes(b"part of a gigabyte")
        then = time.time() - age
        os.utime(registry.path / name, (then, then))
    registry.promote("v001", "champion")
    assert [file.name for file in registry.path.glob("*.tmp")] == [".champion.safetensors.78.tmp"]
    assert registry.resolve("v001").path.is_file()


def test_champion_moves_only_by_promotion_and_can_be_taken_back(registry, make_checkpoint):
    for i in range(3):
        registry.register(make_checkpoint(f"{i}.pt", seed=i, reward_ema=float(i)))
    assert registry.promote("v001", "champion").aliases == ("champion",)
    registry.promote("v001", "champion")  # holds it already
    registry.promote("latest", "champion")
    assert registry.resolve("champion").version == "v003"
    assert registry.rollback("champion").version == "v001"
    assert registry.aliases() == {"champion": "v001", "latest": "v003"}
    moves = [(move["action"], move["version"]) for move in registry.history("champion")]
    assert moves == [("promote", "v001"), ("promote", "v003"), ("rollback", "v001")]
    with pytest.raises(RegistryError, match="only ever pointed at v001"):
        registry.rollback("champion")


def test_lineage_goes_back_to_the_first(registry, make_checkpoint):
    a = registry.register(make_checkpoint("a.pt", seed=0, training_source="bc"))
    b = registry.register(make_checkpoint("b.pt", seed=1), parents=[a])
    c = registry.register(make_checkpoint("c.pt", seed=2), parents=[a])
    registry.register(make_checkpoint("d.pt", seed=3), parents=[b, c])
    registry.register(make_checkpoint("e.pt", seed=4))
    assert [e.version for e in registry.lineage("v004")] == ["v004", "v002", "v003", "v001"]
    assert [e.version for e in registry.lineage("v001")] == ["v001"]


def test_errors_list_existing_versions_and_aliases(registry, make_checkpoint):
    with pytest.raises(
        RegistryError, match=r"no model 'champion' in .*versions: none; .*`navi train ppo --preset quick`"
    ):
        registry.resolve("champion")
    for call in (registry.promote, registry.rollback):
        with pytest.raises(RegistryError, match="versions: none"):
            call("champion")
    assert not registry.path.exists()
    path = make_checkpoint()
    registry.register(path)
    with pytest.raises(RegistryError, match="`navi models promote VERSION` lets one become champion"):
        registry.resolve("champion")
    for call in (
        lambda: registry.resolve("v009"),
        lambda: registry.promote("v009", "champion"),
        lambda: registry.lineage("v009"),
        lambda: registry.register(make_checkpoint("b.pt", seed=1), parents=["v009"]),
    ):
        with pytest.raises(RegistryError, match=r"no model 'v009' in .*versions: v001; aliases: latest → v001"):
            call()
    for call in (registry.rollback, registry.history):
        with pytest.raises(RegistryError, match="no alias 'champion'; versions: v001"):
            call("champion")
    for alias in ("v002", "Champion", "", "a b"):
        with pytest.raises(RegistryError, match="cannot be an alias"):
            registry.promote("v001", alias)
    with pytest.raises(RegistryError, match="metric 'auc' is nan"):
        registry.register(path, metrics={"auc": float("nan")})
    assert [e.version for e in registry.list()] == ["v001"]


def test_a_broken_checkpoint_or_registry_is_refused(registry, make_checkpoint, tmp_path):
    (tmp_path / "bad.pt").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        registry.register(tmp_path / "bad.pt")
    registry.register(make_checkpoint())
    (registry.path / "v001.pt").unlink()
    with pytest.raises(RegistryError, match=r"v001 is registered, but its file .* is missing"):
        registry.resolve("latest")
    (registry.path / "registry.json").write_text("{")
    with pytest.raises(RegistryError, match="cannot be read"):
        registry.list()
    (registry.path / "registry.json").write_text('{"format": 9}')
    with pytest.raises(RegistryError, match="not a registry of format 1"):
        registry.list()


def test_a_full_disk_leaves_the_registry_as_it_was(registry, make_checkpoint, monkeypatch):
    registry.register(make_checkpoint())
    before = (registry.path / "registry.json").read_bytes()
    other = make_checkpoint("b.pt", seed=1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RegistryError, match="No space left on device"):
        registry.register(other)
    monkeypatch.undo()
    assert (registry.path / "registry.json").read_bytes() == before
    assert sorted(f.name for f in registry.path.iterdir()) == [".registry.lock", "registry.json", "v001.pt"]
    assert registry.register(other) == "v002"


def test_concurrent_registrations_are_all_kept(registry, make_checkpoint):
    paths = [make_checkpoint(f"{i}.pt", seed=i, steps=0) for i in range(4)]
    # Every call opens its own lock file, so threads exclude each other as processes do.
    with ThreadPoolExecutor(4) as pool:
        versions = list(pool.map(lambda path: Registry(registry.path).register(path), paths))
    assert sorted(versions) == [e.version for e in registry.list()] == ["v001", "v002", "v003", "v004"]
    assert len({e.weights_hash for e in registry.list()}) == 4


def test_the_command_reads_and_rolls_back(registry, make_checkpoint):
    app = build_app(groups=("models",), plugins=False)
    folder = ["--models", str(registry.path)]

    def run(*arguments):
        result = CliRunner().invoke(app, [*arguments, *folder], catch_exceptions=False)
        assert result.exit_code == 0
        return result.stdout

    assert json.loads(run("models", "list", "--json")) == []
    assert "navi train ppo" in run("models", "list")
    registry.register(make_checkpoint("a.pt"))
    registry.register(make_checkpoint("b.pt", seed=1, reward_ema=0.9), parents=["v001"], metrics={"auc": 0.5})
    registry.promote("v001")
    registry.promote("v002")
    listed = json.loads(run("models", "list", "--json"))
    assert [(e["version"], e["aliases"]) for e in listed] == [("v001", []), ("v002", ["champion", "latest"])]
    assert "v002" in run("models", "list")
    assert json.loads(run("models", "show", "champion", "--json"))["metrics"] == {"auc": 0.5}
    assert "auc = 0.5" in run("models", "show", "v002")
    assert [e["version"] for e in json.loads(run("models", "lineage", "v002", "--json"))] == ["v002", "v001"]
    assert "v001" in run("models", "lineage", "latest")
    assert json.loads(run("models", "rollback", "champion", "--json"))["version"] == "v001"
    assert registry.resolve("champion").version == "v001"
    with pytest.raises(RegistryError, match=r"no model 'v007'"):
        CliRunner().invoke(app, ["models", "show", "v007", *folder], catch_exceptions=False)


def test_latest_moves_only_between_comparable_runs(registry, make_checkpoint, config):
    """Each row: settings, run, reward, episodes and steps of the next registration, then the expected latest."""
    explore, cart = config, config.model_copy(update={"task": "cart_pole"})
    reward = RewardConfig(weights={"collision": 0.0})
    curious = config.model_copy(update={"shaper": ShaperConfig(existential_tax=1.0)})
    blind = config.model_copy(update={"env": config.env.model_copy(update={"reward": reward})})
    few, many = 0, config.actors
    rows = [
        (explore, "a", 0.3, few, 100, "v001"),
        (explore, "a", 0.1, few, 200, "v002"),  # the run's later checkpoint
        (explore, "a", 0.2, few, 150, "v002"),  # the run's earlier checkpoint
        (explore, "b", -0.4, many, 900, "v004"),  # the first that knows whole episodes
        (explore, "c", 0.9, few, 10, "v004"),  # knows beginnings alone
        (explore, "b", -0.5, many, 1800, "v004"),  # went on, and became worse
        (explore, "d", -0.3, many, 500, "v007"),
        (blind, "e", -0.9, many, 500, "v008"),  # another reward
        (blind, "f", 0.9, few, 10, "v008"),
        (cart, "g", 500.0, many, 500, "v008"),  # another task
        (explore, "h", -0.9, many, 500, "v008"),  # the reward of v007, a lower return
        (explore, "i", -0.2, many, 500, "v012"),
        (curious, "j", -0.8, many, 500, "v013"),  # the shaper's reward differs
        (explore, "k", float("inf"), many, 500, "v013"),
    ]
    for seed, (settings, run, reward, episodes, steps, latest) in enumerate(rows):
        reported = {
            "config": settings,
            "run_id": run,
            "reward_ema": reward,
            "episode_count": episodes,
            "step_id": steps,
        }
        registry.register(make_checkpoint(f"{seed}.pt", seed=seed, **reported))
        assert registry.resolve("latest").version == latest, seed
    reasons = {5: "has ended 0 episodes", 6: r"-0\.2000 is the reward_ema to exceed", 10: "solves cart_pole"}
    for number, reported in reasons.items():
        assert re.search(reported, registry.why_latest_stays(registry.resolve(f"v{number:03d}").path)), number


def test_latest_check_loads_one_version_per_reward_setting(registry, make_checkpoint, config, monkeypatch):
    """Hundreds of nights share their settings: a run with another reward loads only one of them."""
    read = []
    monkeypatch.setattr(registry_module, "load_checkpoint", lambda path: read.append(path) or load_checkpoint(path))
    for number in range(6):
        reported = {"reward_ema": 0.1 * number, "episode_count": config.actors, "config": config}
        registry.register(make_checkpoint(f"{number}.pt", seed=number, run_id=f"r{number}", **reported))
    assert registry.resolve("latest").version == "v006"
    blind = config.model_copy(update={"env": config.env.model_copy(update={"reward": RewardConfig(preset="navi9")})})
    file = make_checkpoint("b.pt", seed=9, run_id="b", config=blind, episode_count=config.actors)
    read.clear()
    assert registry.why_latest_stays(file) is None and len(read) == 2


def test_latest_moves_on_from_weights_that_cannot_be_read(registry, make_checkpoint):
    registry.register(make_checkpoint("a.pt", reward_ema=0.9))
    (registry.path / "v001.pt").write_bytes(b"broken")
    registry.register(make_checkpoint("clone.pt", seed=1, reward_ema=float("nan")))
    assert registry.resolve("latest").version == "v001"
    registry.register(make_checkpoint("b.pt", seed=2, reward_ema=0.1))
    assert registry.resolve("latest").version == "v003"


def test_same_rewards_compares_goal_weights_in_point_goal_alone(config):
    """Neither their progress nor their weight is an exploring drone's."""

    def run(task, weight):
        env = config.env.model_copy(update={"task": task, "goal": GoalConfig(progress_weight=weight)})
        return config.model_copy(update={"env": env})

    assert same_rewards(run("explore", 1.0), run("explore", 2.0))
    assert not same_rewards(run("explore", 1.0), run("point_goal", 1.0))
    assert not same_rewards(run("point_goal", 1.0), run("point_goal", 2.0))
