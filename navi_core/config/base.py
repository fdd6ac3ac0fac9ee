"""Base class of all configurations: strict validation, readable errors, configuration hash, list of settings."""

import difflib
import hashlib
import json
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import to_jsonable_python

from navi_core.config.registry import load_plugins
from navi_core.errors import ConfigError

_SECTION = "a section of settings, {name: value}"
_KINDS = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("tuple_type", "list_type", "set_type", "frozen_set_type"), "a list, [a, b]"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), _SECTION),
    "finite_number": "a finite number",
    "string_type": "text",
    "none_required": "null",
    "missing": "a value here, there is none",
}
_BOUNDS = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "literal_error": "{expected}",
    "enum": "{expected}",
}
_ALTERNATIVE = re.compile(r"(constrained-|literal\[|tuple\[|list\[|dict\[|function-)|(int|float|bool|str|none)$")
"""How the last part of a place names one of the kinds that a setting may have."""

_REPR = reprlib.Repr()
"""Bounded in depth and width: nested lists that share their items unfold to any size."""
_REPR.maxlevel = 4
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = _REPR.maxfrozenset = 20
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 120


def format_error(error: ValidationError) -> str:
    """Format a pydantic validation error: setting, value and expected value of every fault.

    A setting of a union type names each of its alternatives once.
    """
    faults: dict[str, tuple[Any, list[str]]] = {}
    parts: list[str] = []
    for fault in error.errors():
        place = [str(part) for part in fault["loc"]]
        if place and _ALTERNATIVE.match(place[-1]):
            place.pop()
        where, context = ".".join(place), fault.get("ctx", {})
        if isinstance(ours := context.get("error"), ConfigError):
            parts.append(f"{where}: {ours}" if where else str(ours))
            continue
        kind = fault["type"]
        expected = _KINDS.get(kind) or (_BOUNDS[kind].format(**context) if kind in _BOUNDS else None)
        if expected is None:
            parts.append(f"{where or 'the configuration'} = {_short(fault.get('input'))}: {fault['msg']}")
            continue
        allowed = faults.setdefault(where, (fault.get("input"), []))[1]
        allowed += [expected] * (expected not in allowed)
    parts += [
        f"{where or 'the configuration'} = {_short(value)}: expected {' or '.join(allowed)}"
        for where, (value, allowed) in faults.items()
    ]
    return "; ".join(parts)


def _short(value: object) -> str:
    text = _REPR.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "training": ("algorithm",),
    **dict.fromkeys(("algo", "rl_algorithm", "learner"), ("algorithm",)),
    **dict.fromkeys(("lr", "learning_rate", "step_size"), ("learning_rate", "ppo.learning_rate")),
    **dict.fromkeys(("num_envs", "n_envs", "num_actors", "n_actors"), ("actors",)),
    **dict.fromkeys(("total_timesteps", "timesteps", "max_steps"), ("total_steps",)),
    **dict.fromkeys(("num_steps", "n_steps", "rollout_steps", "rollout_length"), ("n_step", "rollout", "ppo.rollout")),
    **dict.fromkeys(("n_epochs", "num_epochs", "update_epochs", "ppo_epochs"), ("update_epochs", "epochs")),
    **dict.fromkeys(("minibatch_size", "batch_size", "n_minibatches"), ("batch_size", "minibatch", "sequences")),
    **dict.fromkeys(("clip_range", "clip_coef", "clip_eps", "clip_epsilon"), ("clip", "ppo.clip")),
    **dict.fromkeys(("ent_coef", "entropy_coef", "entropy_weight"), ("ent_coef", "entropy_coefficient")),
    **dict.fromkeys(("vf_coef", "value_coef", "value_loss_coef"), ("value_coefficient",)),
    **dict.fromkeys(("lam", "lambda", "gae"), ("gae_lambda",)),
    **dict.fromkeys(("discount", "discount_factor"), ("gamma", "ppo.gamma")),
    **dict.fromkeys(("kl_coef", "beta_kl"), ("ref_kl_coef",)),
    **dict.fromkeys(("buffer_size", "replay_size", "buffer_capacity"), ("capacity", "replay.capacity")),
    **dict.fromkeys(("tau", "target_tau"), ("polyak", "trust_region_tau")),
    **dict.fromkeys(("target_update_interval", "target_network_frequency"), ("target_period",)),
    "encoder_backend": ("encoder", "policy.encoder"),
    "temporal_core": ("core", "policy.core"),
    "max_episode_steps": ("max_steps", "env.max_steps"),
    "smoothing": ("kernel_smoothing",),
}
"""Keys of other systems, and the settings that they are here; the first one that a section has is suggested."""


def nearest_key(key: str, known: Sequence[str]) -> str | None:
    """Return the known key that an unknown one most likely means: its name in another system, else the most alike."""
    meant = [name for name in _OTHER_NAMES.get(key.lower(), ()) if name.partition(".")[0] in known]
    return next(iter(meant or difflib.get_close_matches(key, known, n=1, cutoff=0.4)), None)


C = TypeVar("C", bound="Config")
Count = Annotated[int, Field(ge=1, le=2**40)]
"""A count; bounded far beyond use, so that a slip of the keyboard is not an hour of allocation."""


class Config(BaseModel):
    """Base class of all configurations: a frozen pydantic model that refuses unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest_key(cls, data: object) -> object:
        if isinstance(data, dict):
            known = list(cls.model_fields)
            for key in data:
                if key not in known:
                    near = nearest_key(str(key), known)
                    hint = f"did you mean {near!r}? " if near else ""
                    raise ConfigError(f"{cls.__name__} has no key {key!r}; {hint}allowed: {', '.join(known)}")
                if isinstance(data[key], bool) and cls.model_fields[key].annotation in (int, float, str):
                    # pydantic would take true for the number 1.
                    kind = "a name" if cls.model_fields[key].annotation is str else "a number"
                    raise ConfigError(f"{key} = {data[key]}: true and false are not {kind}")
        return data


def parse_config(cls: type[C], data: dict[str, Any], *, context: dict[str, Any] | None = None) -> C:
    """Validate plain data as a configuration of class `cls`; a pydantic error becomes one `ConfigError`.

    All settings from outside pass through here, so user-defined networks are loaded here (see
    `load_plugins`), before the first configuration of every process.

    Args:
        cls: A configuration class.
        data: Nested plain values.
        context: For the validators, see `PartNames`.

    Raises:
        ConfigError: Names each offending key, its value and the bound it breaks.
    """
    load_plugins()
    try:
        return cls.model_validate(data, context=context)
    except ValidationError as error:
        raise ConfigError(format_error(error)) from None


def config_hash(config: Config) -> str:
    """Return the configuration hash: first 16 hex digits of the SHA-256 of its canonical JSON."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_SCHEMA_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "null": "null",
    "object": "{name: value, …}",
    "array": "[a, b, …]",
}
_SCHEMA_BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}


@dataclass(frozen=True)
class Setting:
    """Setting of a configuration: dotted name, current value, default, allowed values, description.

    Attributes:
        name: Its place, `ppo.clip`.
        value: Plain data, as a configuration file has it.
        default: Its default.
        allowed: In words.
        meaning: What it is for.
    """

    name: str
    value: Any
    default: Any
    allowed: str
    meaning: str

    @property
    def changed(self) -> bool:
        """Whether the value differs from the default."""
        return bool(self.value != self.default)

    @property
    def text(self) -> str:
        """The value in the syntax of `--set`."""
        return _typed(self.value)

    @property
    def default_text(self) -> str:
        """The default in the syntax of `--set`."""
        return _typed(self.default)


def setting_paths(cls: type[Config]) -> list[tuple[str, ...]]:
    """Return the key paths of all settings of a configuration class, in declaration order."""
    found: list[tuple[str, ...]] = []
    for name, info in cls.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, Config):
            found += [(name, *path) for path in setting_paths(kind)]
        else:
            found.append((name,))
    return found


def settings_of(config: Config) -> list[Setting]:
    """Return all settings of a configuration, in declaration order."""
    usual = type(config)()
    schemas: dict[type[Config], dict[str, Any]] = {}
    found = []
    for path in setting_paths(type(config)):
        section: Any = reduce(getattr, path[:-1], config)
        cls = type(section)
        if cls not in schemas:
            schemas[cls] = cls.model_json_schema()
        schema = schemas[cls]
        field = schema["properties"][path[-1]]
        value, default = (to_jsonable_python(reduce(getattr, path, holder)) for holder in (config, usual))
        # Docstrings speak Python, files and --set YAML.
        meaning = re.sub(r"\bNone\b", "null", " ".join(field.get("description", "").split()))
        found.append(Setting(".".join(path), value, default, _allowed(field, schema.get("$defs", {})), meaning))
    return found


def _allowed(node: Mapping[str, Any], kinds: Mapping[str, Any]) -> str:
    """Describe the allowed values of a JSON schema node in words."""
    if "$ref" in node:
        return _allowed(kinds[node["$ref"].rpartition("/")[2]], kinds)
    if "anyOf" in node:
        return " or ".join(dict.fromkeys(_allowed(each, kinds) for each in node["anyOf"]))
    if "enum" in node or "const" in node:
        return ", ".join(_typed(value) for value in node.get("enum", [node.get("const")]))
    kind = node.get("type", "")
    if kind == "object" and "properties" in node:
        return "{" + ", ".join(f"{name}: …" for name in node["properties"]) + "}"
    bounds = [form.format(_bound_text(node[key])) for key, form in _SCHEMA_BOUNDS.items() if key in node]
    if "multipleOf" in node:
        bounds.append(f"a multiple of {node['multipleOf']}")
    return " ".join((_SCHEMA_KINDS.get(kind, "anything"), ", ".join(bounds))).strip()


def _bound_text(value: float) -> str:
    """Format a numeric bound; large powers of two (typo guards) as powers."""
    whole = int(value)
    if whole == value and whole >= 2**15 and whole.bit_count() == 1:
        return f"2^{whole.bit_length() - 1}"
    return f"{value:.12g}"


def _typed(value: object) -> str:
    """Format a value as one line of YAML."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and (not value or 1e-4 <= abs(value) < 1e6):
        return f"{value:.10g}"
    return json.dumps(value, ensure_ascii=False)
