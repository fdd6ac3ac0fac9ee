import json

import pytest

from navi_core.config import ContinuousTrainingConfig, EnvConfig, TrainConfig, parse_config
from navi_core.errors import ConfigError
from navi_core.presets import (
    environment_overrides,
    load_preset,
    merge,
    parse_assignments,
    parse_sections,
    preset_names,
    read_config_file,
    read_yaml,
    resolve_config,
    write_yaml,
)


def test_every_preset_is_a_valid_configuration():
    assert {"quick", "standard"} <= set(preset_names())
    for name in preset_names():
        assert isinstance(load_preset(name), TrainConfig)


def test_quick_preset_has_the_specified_values():
    c = load_preset("quick")
    assert (c.env.azimuth_bins, c.env.elevation_bins, c.policy.encoder, c.policy.core) == (64, 16, "ring_cnn", "gru")
    assert (c.actors, c.ppo.rollout, c.ppo.bptt, c.ppo.epochs) == (64, 256, 32, 2)
    assert (c.ppo.learning_rate, c.ppo.entropy_coefficient, c.ppo.gamma) == (1e-3, 0.003, 0.99)
    assert c.env.reward.preset == "explore" and c.shaper.existential_tax == -0.02
    assert (c.shaper.rnd_start, c.shaper.rnd_end, c.shaper.loop_coefficient) == (0, 0, 0)
    assert c.compile.resolution >= 256


def test_later_sources_override_earlier_ones(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("actors: 7\nseed: 7\nppo: {learning_rate: 7.0e-4, gamma: 0.7, clip: 0.17}\n")
    environ = {"NAVI_SEED": "8", "NAVI_PPO__GAMMA": "0.8", "NAVI_PPO__CLIP": "0.18", "NAVI_HOME": "/x"}
    flags = {"ppo": {"clip": 0.19, "gae_lambda": 0.9}}
    c = resolve_config(
        preset="quick",
        defaults={"actors": 6, "policy": {"place_memory": True}},
        file=file,
        environ=environ,
        flags=flags,
        assignments=["ppo.gae_lambda=0.91", "threads=1"],
    )
    assert c.policy.encoder == "ring_cnn"  # preset over default
    assert c.policy.place_memory  # task default over preset
    assert c.actors == 7 and c.ppo.learning_rate == 7e-4  # file over both
    assert c.seed == 8 and c.ppo.gamma == 0.8  # environment over file
    assert c.ppo.clip == 0.19  # flag over environment
    assert c.ppo.gae_lambda == 0.91 and c.threads == 1  # --set over flag
    assert c.ppo.epochs == 2  # untouched settings stay


def test_task_defaults_override_shipped_presets_only(tmp_path):
    own, wanted = tmp_path / "own.yaml", {"actors": 6, "policy": {"log_std_init": -1.2}}
    own.write_text("policy: {log_std_init: -0.3}\n")
    shipped, mine = (resolve_config(preset=p, defaults=wanted, environ={}) for p in ("quick", str(own)))
    assert shipped.policy.log_std_init == -1.2 and mine.policy.log_std_init == -0.3
    assert shipped.actors == mine.actors == 6


def test_selectors_of_encoder_and_core():
    environ = {"NAVI_ACTOR_ENCODER_BACKEND": "rayvit", "NAVI_ACTOR_TEMPORAL_CORE": "mamba2"}
    c = resolve_config(preset="quick", environ=environ)
    assert (c.policy.encoder, c.policy.core) == ("rayvit", "mamba2")
    assert environment_overrides({"NAVI_ACTOR_ENCODER_BACKEND": "", "NAVI_SCENES": "/s"}) == {}


def test_colon_without_a_space_is_named_in_the_error():
    """YAML reads {clearance:0.5} as one name without a value."""
    with pytest.raises(ConfigError, match="a colon wants a space"):
        parse_assignments(["env.reward.weights={clearance:0.5}"])
    assert parse_assignments(["env.reward.weights={clearance: 0.5}"])["env"]["reward"]["weights"] == {"clearance": 0.5}


def test_values_of_assignments():
    data = parse_assignments(["ppo.target_kl=null", "corpus.scenes=[a.glb, b.glb]", "ppo.learning_rate=1e-3"])
    c = load_preset("quick", data)
    assert c.ppo.target_kl is None and c.corpus.scenes == ("a.glb", "b.glb") and c.ppo.learning_rate == 1e-3


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"), ("yes", "yes"), ("No", "No"), ("true", True), ("FALSE", False), ("~", None), ("", None),
        ("010", 10), ("-7", -7), ("0x1f", 31), ("0o17", 15), ("1:30", "1:30"), ("1_000", "1_000"), ("0b1", "0b1"),
        ("1e-4", 1e-4), (".5", 0.5), ("5.", 5.0), ("1.5E+3", 1500.0), ("-.inf", float("-inf")), ("1.2.3", "1.2.3"),
        ("2026-11-22", "2026-11-22"), ("'off'", "off"), ("[1, off]", [1, "off"]), ("{<<: 1}", {"<<": 1}),
    ],
)  # fmt: skip
def test_scalars_follow_yaml_1_2(text, value):
    """By the rules of 1.1 `off` is false, `010` is eight, `1:30` is ninety, and a date is no text."""
    read = read_yaml(text)
    assert read == value and type(read) is type(value)


def test_written_yaml_round_trips():
    words = ["08", "1e5", "0o17", "+.5", "off", "1:30", "2026-11-22", "true", "~", "", "null", "x: y", "# a"]
    value = {"words": words, "numbers": [1, -2.5, 1e-05, 1e20, True, None], "08": {"a": ["b"]}}
    assert read_yaml(write_yaml(value)) == value


def test_off_is_read_as_text(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("policy:\n  aux: off\n")
    for given in ({"file": file}, {"assignments": ["policy.aux=off"]}):
        assert resolve_config(environ={}, **given).policy.aux == "off"
    (section,) = parse_sections(["training.shadow_evaluation=off"], ("training",), "").values()
    assert parse_config(ContinuousTrainingConfig, section).shadow_evaluation == "off"


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("ppo.learning_rat=1", ["learning_rat", "did you mean 'learning_rate'"]),
        ("polcy.core=gru", ["polcy", "did you mean 'policy'"]),
        ("actors=0", ["actors", "0"]),
        ("ppo.learning_rate=-1", ["ppo.learning_rate", "-1"]),
        ("policy.core=lstm", ["policy.core", "lstm", "gru"]),
        ("ppo.rollout=100", ["100", "bptt 32"]),
        ("policy.azimuth_bins=128", ["policy.azimuth_bins 128", "leave out policy.azimuth_bins"]),
        ("actors", ["a.b=c"]),
        ("=3", ["a.b=c"]),
    ],
)
def test_bad_assignments_name_the_offender(assignment, words):
    with pytest.raises(ConfigError) as caught:
        resolve_config(preset="quick", environ={}, assignments=[assignment])
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("of", [dict, lambda values: parse_config(EnvConfig, values)])
def test_policy_bins_follow_the_sensor_bins(of):
    bins = {"azimuth_bins": 128, "elevation_bins": 32}
    c = parse_config(TrainConfig, {"env": of(bins), "policy": {"patch": 16}})
    assert (c.policy.azimuth_bins, c.policy.elevation_bins, c.policy.patch) == (128, 32, 16)
    c = parse_config(TrainConfig, {"policy": {"azimuth_bins": 128}})
    assert (c.env.azimuth_bins, c.env.elevation_bins) == (128, 48)
    c = resolve_config(preset="quick", assignments=["env.azimuth_bins=32"], environ={})
    assert (c.policy.azimuth_bins, c.policy.elevation_bins) == (32, 16)
    with pytest.raises(
        ConfigError, match=r"policy.azimuth_bins 64 differs from env.azimuth_bins 32; leave out policy.azimuth_bins"
    ):
        parse_config(TrainConfig, {"env": {"azimuth_bins": 32}, "policy": {"azimuth_bins": 64}})
    with pytest.raises(ConfigError, match="azimuth_bins 100 is not a multiple of the patch 8"):
        parse_config(TrainConfig, {"env": {"azimuth_bins": 100}, "policy": {"encoder": "rayvit"}})


@pytest.mark.parametrize("text", ["policy=gru", "policy=3", "policy=null", "policy=[1]", "env=gru", "env=null"])
def test_scalar_in_place_of_a_section_is_refused(text):
    with pytest.raises(ConfigError, match="section"):
        resolve_config(preset="quick", assignments=[text], environ={})


def test_patch_multiples_are_checked():
    with pytest.raises(ConfigError, match="patch 8"):
        resolve_config(environ={}, assignments=["env.azimuth_bins=60", "policy.azimuth_bins=60"])


def test_unknown_preset_and_environment_name_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'quick'"):
        load_preset("quik")
    with pytest.raises(ConfigError, match="NAVI_PPO__LEARNING_RATE"):
        environment_overrides({"NAVI_PPO__LEARNING_RAT": "1"})


def test_config_files(tmp_path):
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"seed": 3}))
    assert read_config_file(file) == {"seed": 3}
    record = {"config_class": "TrainConfig", "config": load_preset("quick").model_dump(mode="json"), "run_id": "r"}
    file.write_text(json.dumps(record))
    assert resolve_config(file=file, environ={}) == load_preset("quick")
    for text, match in (("[1, 2]", "list"), ("a: [", "not YAML")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=match):
            read_config_file(file)
    with pytest.raises(ConfigError, match="cannot read"):
        read_config_file(tmp_path / "missing.yaml")


def test_merge_replaces_values_and_merges_sections():
    base = {"ppo": {"gamma": 0.9, "clip": 0.2}, "corpus": {"families": {"maze": (1,)}}}
    merged = merge(base, {"ppo": {"clip": 0.1}, "corpus": {"families": {"atrium": (2,)}}})
    assert merged == {"ppo": {"gamma": 0.9, "clip": 0.1}, "corpus": {"families": {"atrium": (2,)}}}
    assert base["ppo"]["clip"] == 0.2
