"""Variants of experiments: name, question, changed settings; and the catalogue of an ablation's variants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from navi_core.errors import ConfigError, did_you_mean

BASE = "base"
"""Name of the baseline variant that all others are compared with."""


@dataclass(frozen=True)
class Variant:
    """One variant of an experiment: the settings that it changes, its learner, an optional cloned initialisation.

    Attributes:
        name: Name of the variant.
        question: Question that the variant answers.
        settings: Settings that override the base's.
        algorithm: Name of the learner.
        cloned: Whether training starts from a behaviour clone.
    """

    name: str
    question: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    algorithm: str = "ppo"
    cloned: bool = False


def sensor_settings(azimuth: int, elevation: int) -> dict[str, Any]:
    """Return environment and policy settings for a panorama of azimuth × elevation bins."""
    bins = {"azimuth_bins": azimuth, "elevation_bins": elevation}
    return {"env": dict(bins), "policy": dict(bins)}


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant(BASE, "The preset as it is"),
        Variant("rnd", "Does curiosity help?", {"shaper": {"rnd_start": 1.0, "rnd_end": 0.01}}),
        Variant("episodic_memory", "Does a penalty for loops help?", {"shaper": {"loop_coefficient": 2.0}}),
        Variant(
            "rnd+episodic_memory",
            "Do both together?",
            {"shaper": {"rnd_start": 1.0, "rnd_end": 0.01, "loop_coefficient": 2.0}},
        ),
        Variant(
            "no_aux",
            "Is the auxiliary input of use, that of the map included?",
            {"policy": {"aux": "off", "place_memory": False}},
        ),
        Variant(
            "navi9", "Do the source's nine reward terms teach to explore?", {"env": {"reward": {"preset": "navi9"}}}
        ),
        Variant(
            "navi9+view_gain",
            "Is view_gain all that the nine lack?",
            {"env": {"reward": {"preset": "navi9", "weights": {"view_gain": 1.0}}}},
        ),
        Variant(
            "navi9+3view_gain",
            "Does view_gain drown the nine at three times its weight?",
            {"env": {"reward": {"preset": "navi9", "weights": {"view_gain": 3.0}}}},
        ),
        Variant(
            "no_collision",
            "Does the policy need a collision penalty?",
            {"env": {"reward": {"weights": {"collision": 0.0}}}},
        ),
        Variant("no_tax", "Does the tax on time matter?", {"shaper": {"existential_tax": 0.0}}),
        Variant("place_memory", "Is a map of its own flight of use?", {"policy": {"place_memory": True}}),
        Variant("core_none", "Does it need a memory?", {"policy": {"core": "none"}}),
        Variant("core_gru", "Which memory: GRU?", {"policy": {"core": "gru"}}),
        Variant("core_mamba2", "Which memory: Mamba-2?", {"policy": {"core": "mamba2"}}),
        Variant("core_mambapy", "Which memory: Mamba?", {"policy": {"core": "mambapy"}}),
        Variant("encoder_ring_cnn", "Which eye: convolutions on rings?", {"policy": {"encoder": "ring_cnn"}}),
        Variant(
            "encoder_spherical_cnn", "Which eye: convolutions on the sphere?", {"policy": {"encoder": "spherical_cnn"}}
        ),
        Variant("encoder_rayvit", "Which eye: a vision transformer?", {"policy": {"encoder": "rayvit"}}),
        Variant("resolution_32x8", "How coarse may the panorama be?", sensor_settings(32, 8)),
        Variant("resolution_128x24", "What does a finer panorama bring?", sensor_settings(128, 24)),
        Variant("resolution_256x48", "What does the finest panorama bring?", sensor_settings(256, 48)),
        Variant("grpo", "Does it learn without a critic?", algorithm="grpo"),
        Variant("dqn", "Does it learn off policy?", algorithm="dqn"),
        Variant("bc+ppo", "Is a clone the better beginning?", cloned=True),
    )
}
"""Ablation variants of the catalogue by name."""


def find_variants(names: Sequence[str], own: Mapping[str, Mapping[str, Any]] | None = None) -> list[Variant]:
    """Return the named and the custom variants, the base first; without either, the whole catalogue.

    Args:
        names: Names of catalogue or custom variants.
        own: Settings of the custom variants by name; `algorithm` selects another learner.

    Raises:
        ConfigError: A name is unknown, or a custom variant has the name of a catalogue's.
    """
    own = own or {}
    for name in own:
        if name in VARIANTS:
            raise ConfigError(f"variant {name!r} is one of `navi study ablate --list`; give your own another name")
    for name in names:
        if name not in VARIANTS and name not in own:
            hint = did_you_mean(name, (*VARIANTS, *own))
            raise ConfigError(
                f"no variant {name!r}; {hint}allowed: {', '.join((*VARIANTS, *own))}; --vary adds your own"
            )
    wanted = [name for name in VARIANTS if name in names] if names or own else list(VARIANTS)
    found = [VARIANTS[name] for name in dict.fromkeys((BASE, *wanted))]
    for name, settings in own.items():
        rest = {section: value for section, value in settings.items() if section != "algorithm"}
        found.append(Variant(name, "One's own", rest, algorithm=str(settings.get("algorithm", "ppo"))))
    return found
