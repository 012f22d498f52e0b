"""The YAML of configurations: plain values only, ``1e-3`` is a number, and short texts cannot become huge."""

from __future__ import annotations

import re
from typing import Any

import yaml

_MOST_VALUES = 20_000


def parse_yaml(text: str) -> Any:
    """Return the plain values of a YAML text.

    Raises:
        yaml.YAMLError, RecursionError, ValueError: if the text is not such YAML.
    """
    return yaml.load(text, Loader=_Loader)  # a SafeLoader


def dump_yaml(values: Any) -> str:
    """Return plain values as YAML that ``parse_yaml`` reads back; keys keep their order."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False)


class _Loader(yaml.SafeLoader):
    """Safe YAML in which ``1e-3`` is a number and a key written twice is an error.

    Aliases and merge keys can expand a short text to billions of values, so the values are counted first.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._sizes: dict[yaml.Node, int] = {}  # the number of values in each node, aliases expanded
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._nodes += 1
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        assert node is not None
        if not is_alias:
            self._sizes[node] = 1 + sum(self._sizes[child] for child in _children(node))
        size = self._sizes.get(node, _MOST_VALUES + 1)  # a node that is not complete yet contains itself
        if max(self._nodes, size) > _MOST_VALUES:
            raise yaml.constructor.ConstructorError(
                None, None, f"more than {_MOST_VALUES:,} values, aliases included", node.start_mark
            )
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set[str]()
        for key in (key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key in keys:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", node.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


class _Dumper(yaml.SafeDumper):
    """Writes YAML for ``_Loader``: text that looks like ``1e5`` is quoted."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$"), list("-+0123456789")
    )
