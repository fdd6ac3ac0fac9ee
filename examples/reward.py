"""Custom reward term: speed as a share of the drone's maximum."""

from navi_core.world import register_reward


@register_reward("haste")
def haste(config):
    """Return the term: a function of a step and its actions, one value for each drone."""
    fastest = config.dynamics.max_speed[0]
    return lambda batch, action: batch.info["speed"] / fastest
