"""What older code wrote of a training's settings, in today's words: with the meaning that the training had."""

from __future__ import annotations

from typing import Any

__all__ = ["given_of_today", "settings_of_today"]


def settings_of_today(told: dict[str, Any]) -> dict[str, Any]:
    """Return a training's settings as today's classes take them; what today's code wrote comes back as it is.

    A setting that is missing gets today's default. That is what older code did, except where it stands here.

    Args:
        told: The `TrainConfig` of a checkpoint, as plain data.
    """
    today = given_of_today(told)
    if isinstance(told.get("ppo"), dict):
        today["ppo"] = {"normalise_returns": False, **today["ppo"]}
    adaptation = told.get("adaptation")
    if isinstance(adaptation, dict) and adaptation.get("enabled") and told.get("algorithm") != "dqn":
        # It was taken from every learner, and moved settings of dqn alone.
        today["adaptation"] = adaptation | {"enabled": False}
    return today


def given_of_today(given: dict[str, Any]) -> dict[str, Any]:
    """Return some settings of a training, as a person gave them to older code, in today's words.

    Args:
        given: Some of the `TrainConfig`, as plain data.
    """
    today = dict(given)
    if isinstance(given.get("ppo"), dict):
        ppo = today["ppo"] = dict(given["ppo"])
        if (end := ppo.pop("final_learning_rate", None)) is not None:
            ppo["schedules"] = {"learning_rate": {"shape": "cosine", "end": end}}
    for learner in ("dpo", "dqn"):
        section = given.get(learner)
        if isinstance(section, dict) and section.get("microbatch") is not None:
            # These two had it from the rollouts that they share with ppo and grpo, and never looked at it.
            today[learner] = {name: value for name, value in section.items() if name != "microbatch"}
    return today
