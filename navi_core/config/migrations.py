"""Migration of training settings that older versions wrote, with the meaning that they had."""

from typing import Any


def upgrade_train_config(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a training's settings as today's classes take them; current settings stay unchanged.

    A missing setting gets today's default. Exceptions are listed here.

    Args:
        raw: The `TrainConfig` of a checkpoint, as plain data.
    """
    today = upgrade_settings(raw)
    if isinstance(raw.get("ppo"), dict):
        today["ppo"] = {"normalise_returns": False, **today["ppo"]}
    adaptation = raw.get("adaptation")
    if isinstance(adaptation, dict) and adaptation.get("enabled") and raw.get("algorithm") != "dqn":
        # It was taken from every learner, and moved settings of dqn alone.
        today["adaptation"] = adaptation | {"enabled": False}
    return today


def upgrade_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return some settings of a training, written for older code, as today's classes take them.

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
