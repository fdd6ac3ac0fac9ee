"""Initial weights of a night: `latest` where it fits, else the newest version of a night, else the champion.

`latest` moves to whatever was trained last where rewards do not compare, so an experiment of the day may hold it in
the evening. A night goes on with another one's network only if it can, and with another one's rewards not at all: the
versions that nights made are what it goes on with instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from navi_core.errors import NaviError

if TYPE_CHECKING:
    from navi_core.config import TrainConfig
    from navi_core.models import ModelVersion, Registry

ASSET = "nightly"
"""Asset of a night's runs, with which their names begin."""


@dataclass(frozen=True)
class Start:
    """What a night begins with.

    Attributes:
        init: A version, or `none` for new weights.
        why: What it is, for people.
        passed_over: Why versions that come before it were not taken.
    """

    init: str
    why: str
    passed_over: list[str] = field(default_factory=list)


def choose_start(config: TrainConfig, registry: Registry) -> Start:
    """Return the first version that fits: latest, the newest that a night made, the champion; else new weights.

    Args:
        config: What the night trains with.
        registry: Where versions are.

    Raises:
        RegistryError: The registry cannot be read.
    """
    passed: dict[str, str] = {}
    for version, what, paid_alike in _candidates(registry):
        why = _why_not(config, version, paid_alike=paid_alike)
        if why is None:
            return Start(version.version, f"{version.version}, {what}", list(passed.values()))
        passed.setdefault(version.version, f"{version.version} ({what}) {why}")
    return Start("none", "new weights", list(passed.values()))


def _candidates(registry: Registry) -> Iterator[tuple[ModelVersion, str, bool]]:
    """Yield versions, what they are, and whether they have to have been paid as the night pays."""
    versions = {version.version: version for version in registry.list()}
    aliases = registry.aliases()
    if "latest" in aliases:
        yield versions[aliases["latest"]], "latest", True
    # Of nights with the same settings one is enough: hundreds of versions are a few networks.
    looked_at: set[str] = set()
    for version in reversed(versions.values()):
        if version.run_id.startswith(f"{ASSET}-") and version.config_hash not in looked_at:
            looked_at.add(version.config_hash)
            yield version, "made by a night", False
    if "champion" in aliases:
        yield versions[aliases["champion"]], "champion", False


def _why_not(config: TrainConfig, version: ModelVersion, *, paid_alike: bool) -> str | None:
    """Return why a night cannot begin with a version, None where it can."""
    from navi_core.models import load_checkpoint
    from navi_core.models.lineage import same_network, same_rewards

    try:
        checkpoint = load_checkpoint(version.path)
        theirs = checkpoint.train_config()
    except NaviError as error:
        return f"cannot be read: {error}"
    if not same_network(config.policy, checkpoint):
        return "is another network than the profile's"
    if paid_alike and not same_rewards(config, theirs):
        return "was paid for something else than the profile pays for"
    return None
