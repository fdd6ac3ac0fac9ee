"""YAML for settings: plain values, every key once, and no aliases, which a small file can multiply without end."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from navi_core.errors import ConfigError

if TYPE_CHECKING:
    import yaml

__all__ = ["read_yaml"]


def read_yaml(text: str) -> Any:
    """Return the plain value that `text` spells.

    Raises:
        ConfigError: It is not YAML, has a key twice, an alias, a tag, an impossible date or number, or is nested
            too deep; the line is named where there is one.
    """
    import yaml

    try:
        return yaml.load(text, Loader=_loader())  # a SafeLoader: plain values only
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError("is not YAML: it is nested too deep") from None


@cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()
                raise yaml.composer.ComposerError(None, None, f"alias *{event.anchor}: write it out", event.start_mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                if key.tag == "tag:yaml.org,2002:str" and key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} occurs twice", key.start_mark
                    )
                seen.add(key.value if isinstance(key.value, str) else None)
            return super().construct_mapping(node, deep)

    return Loader
