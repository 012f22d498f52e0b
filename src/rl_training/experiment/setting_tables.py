"""What each setting accepts and means, read from the settings classes, for ``rl-training settings`` and the docs."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from rl_training.algorithms.table import DEFAULT_BACKEND, Algorithm, backend_names
from rl_training.runtime.settings import group_types

_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_KINDS = {int: "integer", float: "number", str: "text", Path: "path"}

_FIRST_GROUPS = ("learner", "hindsight", "loop", "collection", "exploration", "replay", "prior")
"""The groups that are listed first; the others follow as ``group_types`` has them."""

ONLINE_MEANING = "whether the run plays in env_id to collect data"
BACKEND_MEANING = "the learner that hindsight feeds"


@dataclass(frozen=True)
class Setting:
    """One key, with everything that a reader needs to know about it."""

    key: str
    default: str
    """As it is written in YAML; ``unset`` for null, ``required`` where there is none."""
    accepts: str
    meaning: str
    value: Any = None
    """The default as a plain value."""


@dataclass(frozen=True)
class SettingGroup:
    """The settings of one class."""

    name: str
    needs_online: bool
    """Whether they are accepted only with ``online: true``."""
    settings: list[Setting]


@dataclass(frozen=True)
class Markup:
    """How a table writes what its readers could type, and the settings classes that a value may be."""

    literal: Callable[[str], str] = str
    nested: Callable[[type[BaseModel]], str] = lambda cls: f"mapping of {', '.join(cls.model_fields)}"


def algorithm_settings(algorithm: Algorithm) -> list[SettingGroup]:
    """Return every key of ``algo_kwargs`` that an algorithm accepts, by group. The learner's come first."""
    defaults = {**algorithm.learner.run_defaults, **algorithm.defaults}
    own, classes = group_types(algorithm, algorithm.online), group_types(algorithm, online=True)
    first = [Setting("online", _text(algorithm.online), "true, false", ONLINE_MEANING, algorithm.online)]
    if algorithm.hindsight:
        backends = ", ".join(backend_names())
        first.insert(0, Setting("backend", DEFAULT_BACKEND, backends, BACKEND_MEANING, DEFAULT_BACKEND))
    names = [name for name in dict.fromkeys([*_FIRST_GROUPS, *classes]) if name in classes]
    groups = [SettingGroup(name, name not in own, list(describe_settings(classes[name], defaults))) for name in names]
    return [groups[0], SettingGroup("algorithm", False, first), *groups[1:]]


def describe_settings(
    cls: type[BaseModel], defaults: Mapping[str, Any] | None = None, markup: Markup | None = None
) -> Iterator[Setting]:
    """Yield the settings of a class, those of its base classes included; ``defaults`` replace the class's own."""
    markup = markup or Markup()
    for key, field in cls.model_fields.items():
        meaning = field.description or ""
        if defaults and key in defaults:
            value = defaults[key]
        elif field.is_required():
            yield Setting(key, "required", _accepts(field, markup), meaning)
            continue
        else:
            value = field.get_default(call_default_factory=True)
        text = "unset" if value is None else markup.literal(_text(value))
        yield Setting(key, text, _accepts(field, markup), meaning, to_jsonable_python(value))


def _text(value: Any) -> str:
    """Return a default as YAML would have it."""
    if isinstance(value, BaseModel) or value == {}:
        return "{}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _accepts(field: FieldInfo, markup: Markup) -> str:
    """Return the kinds of value that a field takes, and their bounds."""
    parts = [part for part in _alternatives(field.annotation) if part is not type(None)]
    kinds = ["path", "URL"] if parts == [Path, str] else [_kind(part, markup) for part in parts]
    bounds = [f"{sign} {limit:,}".removesuffix(".0") for sign, limit in _limits(field.metadata)]
    return ", ".join([" or ".join(kinds), *bounds])


def _kind(annotation: Any, markup: Markup) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return ", ".join(markup.literal(str(choice)) for choice in arguments)
    if origin is typing.Annotated:
        metadata = [item for field in arguments[1:] for item in field.metadata]
        return " ".join([_kind(arguments[0], markup), *(f"{sign} {limit:g}" for sign, limit in _limits(metadata))])
    if origin is tuple:
        return f"list of {_kind(arguments[0], markup)}"
    if origin is dict:
        return "mapping"
    if annotation is bool:
        return ", ".join(map(markup.literal, ("true", "false")))
    return _KINDS.get(annotation) or markup.nested(annotation)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union, or the annotation alone."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _limits(metadata: list[Any]) -> Iterator[tuple[str, Any]]:
    for limit in metadata:
        for name, sign in _BOUNDS.items():
            if hasattr(limit, name):
                yield sign, getattr(limit, name)
