"""YAML for settings: plain values, every key once, and no aliases, which a small file can multiply without end.

Words and numbers have their YAML 1.2 meaning (core schema, section 10.3.2). The library follows YAML 1.1, in which
`off` is a truth, `010` is eight, `1:30` is ninety and a date is a day.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from navi_core.errors import ConfigError

if TYPE_CHECKING:
    import yaml

_PLAIN = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
"""What a plain scalar is, by tag: the first whose pattern it is as a whole; and the characters it may begin with."""


def read_yaml(text: str) -> object:
    """Return the plain value that `text` spells.

    Raises:
        ConfigError: It is not YAML, has a key twice, an alias, a tag, too long a number, or is nested too deep; the
            line is named where there is one.
    """
    import yaml

    try:
        value: object = yaml.load(text, Loader=_loader())  # a SafeLoader: plain values only
        return value
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError("is not YAML: it is nested too deep") from None


def write_yaml(value: object) -> str:
    """Return text that `read_yaml` reads as `value`: words that look like numbers are quoted."""
    import yaml

    return yaml.dump(value, Dumper=_dumper(), sort_keys=False)


@cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: dict[str, Any] = {}

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()  # type: ignore[no-untyped-call]
                raise yaml.composer.ComposerError(None, None, f"alias *{event.anchor}: write it out", event.start_mark)
            event = self.peek_event()  # type: ignore[no-untyped-call]
            if getattr(event, "tag", None) is not None:
                raise yaml.composer.ComposerError(None, None, f"the tag {event.tag}: leave it out", event.start_mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                # Another way to write the same number is the same key.
                name = self.construct_object(key) if isinstance(key, yaml.ScalarNode) else None
                if name in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {name!r} occurs twice", key.start_mark
                    )
                seen |= set() if name is None else {name}
            return super().construct_mapping(node, deep)

        def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
            text = self.construct_scalar(node)
            return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    _resolve(Loader)
    return Loader


@cache
def _dumper() -> type[yaml.SafeDumper]:
    import yaml

    class Dumper(yaml.SafeDumper):
        yaml_implicit_resolvers: dict[str, Any] = {}

    _resolve(Dumper)
    return Dumper


def _resolve(kind: type[yaml.SafeLoader] | type[yaml.SafeDumper]) -> None:
    for name, (pattern, first) in _PLAIN.items():
        kind.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(f"({pattern})\\Z"), first)
