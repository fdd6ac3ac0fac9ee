"""Table of readers: which learner, network, task, setting or command reads which setting of a training.

A setting without a rule is read by every run. Rules add up: a setting is read where all of its rules hold.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from navi_core.config.base import Config, setting_paths
from navi_core.config.learn import TrainConfig
from navi_core.config.registry import CORE_NAMES, ENCODER_NAMES, LEARNER_NAMES

CUSTOM = "user-defined"
"""Stands for every name that is not built in."""
SET, UNSET = "set", "not set"
"""Conditions on a value: true, above zero or not empty; or none of these."""


class Not(tuple[object, ...]):
    """Values of a condition that do not read; all others do."""


Condition = str | tuple[object, ...]
Where = dict[str, Condition]
"""Path of a setting, `command`, `device` or an environment variable (`$NAME`) → values with which it is read; `*` in a
text stands for anything."""

_REINFORCED: Where = {"algorithm": Not(("bc",))}
_ATARI = ("gymnasium:ALE/*", "gymnasium:*NoFrameskip-v*")
_DISCRETE = ("cart_pole", "acrobot", "snake", "repeat_previous", "repeat_first", *_ATARI)
_CURIOUS: tuple[Where, ...] = ({"shaper.rnd_start": SET}, {"shaper.rnd_end": SET})
_MONITORED: tuple[Where, ...] = ({"early_stopping.enabled": SET}, {"adaptation.enabled": SET, "algorithm": ("dqn",)})

RULES: tuple[tuple[str, Where | tuple[Where, ...]], ...] = (
    # Commands
    (
        "algorithm learner_options task task_options seed actors total_steps checkpoint_every keep_checkpoints threads "
        "precision execution storage profile device corpus compile.padding compile.up_axis compile.unit_scale "
        "compile.max_leaf_triangles compile.decimate compile.semantics policy.encoder policy.core policy.width "
        "policy.patch policy.area_attention policy.separable_refinement policy.picture_channels policy.core_layers "
        "policy.aux policy.place_memory policy.recovery policy.depth_shift policy.depth_scale policy.distribution "
        "policy.q_hidden policy.dueling policy.log_std_init policy.separate_value policy.stop_value_gradient "
        "policy.privileged_critic shaper ppo grpo dpo bc dqn replay kernel_smoothing early_stopping adaptation "
        "distributed",
        {"command": Not(("demos pairs",))},
    ),
    ("distributed early_stopping.aggregate early_stopping.trim", {"command": ("learner",)}),
    # Learners
    ("ppo policy.stop_value_gradient", {"algorithm": ("ppo", CUSTOM)}),
    # A clone has the network of the ppo run that goes on from it.
    ("policy.separate_value policy.privileged_critic policy.anticipation", {"algorithm": ("ppo", "bc", CUSTOM)}),
    ("grpo", {"algorithm": ("grpo",)}),
    ("dpo", {"algorithm": ("dpo",)}),
    ("bc", {"algorithm": ("bc",)}),
    ("dqn replay kernel_smoothing adaptation policy.q_hidden policy.dueling", {"algorithm": ("dqn",)}),
    (
        "actors total_steps storage profile shaper task task_options corpus compile early_stopping env.max_steps "
        "env.episodes_per_scene env.void_starvation env.void_grace env.void_ends env.stagger env.sensor env.bodies "
        "env.reward env.spawn env.task env.goal env.dynamics.limiter_distance env.dynamics.limiter_floor "
        "env.dynamics.limiter_elevation_degrees env.dynamics.height_limit",
        _REINFORCED,
    ),
    ("policy.map_cell policy.done_after", {"policy.place_memory": SET}),
    (
        "env.dynamics.smoothing env.dynamics.radius env.dynamics.max_acceleration env.dynamics.max_yaw_acceleration",
        (_REINFORCED, {"policy.place_memory": SET}),
    ),
    # Flight or a reference task
    (
        "env corpus compile policy.encoder policy.azimuth_bins policy.elevation_bins policy.patch "
        "policy.area_attention policy.separable_refinement policy.depth_shift policy.depth_scale policy.recovery "
        "policy.privileged_critic policy.anticipation policy.known_channel",
        {"task": UNSET},
    ),
    ("task_options", {"task": SET}),
    ("policy.picture_channels", {"task": _ATARI}),
    ("policy.distribution policy.log_std_init", {"task": Not(_DISCRETE)}),
    ("shaper.velocity_weight", {"task": UNSET}),
    ("env.goal", {"env.task": ("point_goal",)}),
    ("corpus.manifest", {"corpus.scenes": UNSET}),
    ("corpus.root", {"corpus.scenes": UNSET, "corpus.manifest": UNSET}),
    (
        "corpus.families",
        {"corpus.scenes": UNSET, "corpus.manifest": UNSET, "corpus.root": UNSET, "$NAVI_SCENES": UNSET},
    ),
    # Networks
    ("policy.patch policy.area_attention", {"policy.encoder": ("rayvit",)}),
    ("policy.separable_refinement", {"policy.encoder": ("spherical_cnn",)}),
    ("policy.log_std_init", {"policy.distribution": ("gaussian",)}),
    ("profile", {"device": ("cuda",)}),
    # Options of a section
    ("shaper.rnd_decay_steps shaper.rnd_clamp shaper.rnd_lr", _CURIOUS),
    (
        "shaper.loop_threshold shaper.loop_decay shaper.loop_tau shaper.memory_capacity shaper.memory_exclusion",
        {"shaper.loop_coefficient": SET},
    ),
    ("ppo.advantage_exponent ppo.advantage_correction", {"ppo.order": ("advantage",)}),
    ("ppo.reward_clip", {"ppo.normalise_rewards": SET}),
    (
        "grpo.kl_estimator grpo.ref_sync_every_updates",
        ({"grpo.ref_kl_coef": SET}, {"grpo.schedules.ref_kl_coef": SET}),
    ),
    ("dpo.held_out", {"dpo.pairs": SET}),
    ("dqn.polyak", {"dqn.target_update": ("polyak",)}),
    ("dqn.target_period", {"dqn.target_update": ("periodic",)}),
    ("dqn.epsilon_base dqn.epsilon_exponent", {"dqn.exploration": ("per_actor",)}),
    ("dqn.epsilon_end", {"dqn.exploration": ("shared",)}),
    ("dqn.burn_in replay.sequence_max_share", {"policy.core": Not(("none",))}),
    (
        "replay.alpha replay.beta0 replay.beta_steps replay.priority_floor replay.sequence_max_share "
        "kernel_smoothing.importance_weighted",
        {"replay.prioritized_replay": SET},
    ),
    ("kernel_smoothing.*", {"kernel_smoothing.enabled": SET}),
    ("kernel_smoothing.regulariser_weight", {"kernel_smoothing.apply_to": ("q_regulariser",)}),
    ("kernel_smoothing.alpha_step_decay_steps", {"kernel_smoothing.alpha_step_schedule": ("linear", "cosine")}),
    ("kernel_smoothing.td_var_min kernel_smoothing.disagreement_min", {"kernel_smoothing.gate_by_td_variance": SET}),
    ("kernel_smoothing.temperature", {"kernel_smoothing.free_energy_weight": SET}),
    ("early_stopping.*", _MONITORED),
    (
        "early_stopping.patience early_stopping.hysteresis_pct early_stopping.td_ema_beta "
        "early_stopping.plateau_threshold early_stopping.td_var_floor early_stopping.trend early_stopping.slump "
        "early_stopping.rise early_stopping.aggregate early_stopping.trim",
        {"early_stopping.enabled": SET},
    ),
    ("early_stopping.trim", {"early_stopping.aggregate": ("trimmed_mean",)}),
    ("adaptation.*", {"adaptation.enabled": SET}),
    (
        "adaptation.alpha_step_bounds adaptation.tau_bounds adaptation.k_bounds",
        {"kernel_smoothing.enabled": SET},
    ),
)
"""Settings, sections (`ppo`) or the rest of a section beside its switch (`adaptation.*`), and where they are read."""

_BUILT_IN = {"algorithm": LEARNER_NAMES, "policy.encoder": ENCODER_NAMES, "policy.core": CORE_NAMES}


def rules_of(name: str) -> list[tuple[Where, ...]]:
    """Return the rules of a setting; of each rule one alternative must hold."""
    found = []
    for names, where in RULES:
        for pattern in names.split():
            section = pattern.removesuffix(".*")
            inside = name.startswith(f"{section}.") and not (pattern != section and name == f"{section}.enabled")
            if inside or name == pattern:
                found.append(where if isinstance(where, tuple) else (where,))
                break
    return found


def value_at(config: Config, path: str, facts: Mapping[str, object]) -> object:
    """Return the value that a condition looks at: a fact, an environment variable, or a setting.

    Args:
        config: The configuration.
        path: Key of a `Where`.
        facts: `command` and `device`.
    """
    if path in facts:
        return facts[path]
    if path.startswith("$"):
        return os.environ.get(path[1:])
    value: Any = config
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part)
    return CUSTOM if path in _BUILT_IN and value not in _BUILT_IN[path].built_in else value


def holds(condition: Condition, value: object) -> bool:
    """Return whether a condition holds for a value."""
    if isinstance(condition, str):
        return bool(value) == (condition == SET)
    listed = any(value == each or (isinstance(each, str) and fnmatchcase(str(value), each)) for each in condition)
    return listed != isinstance(condition, Not)


def missing_reader(name: str, config: TrainConfig, facts: Mapping[str, object]) -> str | None:
    """Describe the part that would read a setting where this run does not; None where it is read.

    Args:
        name: Dotted name of the setting.
        config: The run's configuration.
        facts: `command` (train, bc, learner, demos pairs) and `device` (cpu, cuda) of the run.
    """
    for alternatives in rules_of(name):
        broken = []
        for where in alternatives:
            lacking = {path: cond for path, cond in where.items() if not holds(cond, value_at(config, path, facts))}
            if not lacking:
                break
            broken.append(
                next((_in_words(p, cond), _shown(p, value_at(config, p, facts))) for p, cond in lacking.items())
            )
        else:
            return f"{' or '.join(dict.fromkeys(words for words, _ in broken))}, not {broken[0][1]}"
    return None


def _in_words(path: str, condition: Condition) -> str:
    if isinstance(condition, str):
        return f"no {path}" if condition == UNSET else f"{path} set"
    if path == "command" and not isinstance(condition, Not):
        return " or ".join(f"the command navi {each}" for each in condition)
    values = " or ".join(map(str, condition))
    return f"{path} other than {values}" if isinstance(condition, Not) else f"{path} {values}"


def _shown(path: str, value: object) -> str:
    shown = "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"navi {shown}" if path == "command" else shown


def given_names(given: Mapping[str, Any]) -> list[str]:
    """Return the dotted names of the settings that nested values contain, in the order of `TrainConfig`."""
    found = []
    for path in setting_paths(TrainConfig):
        below: Any = given
        for part in path:
            below = below[part] if isinstance(below, Mapping) and part in below else _ABSENT
        if below is not _ABSENT:
            found.append(".".join(path))
    return found


_ABSENT = object()


def unread(
    config: TrainConfig, names: Iterable[str], command: str, device: Callable[[], str] = lambda: "cpu"
) -> list[str]:
    """Return one sentence for each part that would read settings which this run does not read.

    Args:
        config: The run's configuration.
        names: Dotted names of the settings that were given.
        command: The command: train, bc, learner, demos pairs.
        device: Returns the device that `auto` chooses; called only where a setting depends on it.
    """
    parts: dict[str, list[str]] = {}
    for name in names:
        chosen = device() if name == "profile" and config.device == "auto" else config.device
        part = missing_reader(name, config, {"command": command, "device": chosen})
        if part is not None:
            parts.setdefault(part, []).append(name)
    return [f"{', '.join(names)} has no effect in this run: needs {part}" for part, names in parts.items()]
