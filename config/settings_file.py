"""A settings file: YAML, one flat mapping of flag names to values."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

NULL_TAG = "tag:yaml.org,2002:null"


@dataclass(frozen=True)
class Setting:
    """One entry, its value still the text that stands in the file, so that no YAML rule turns `no` into false."""

    value: str | tuple[str, ...]
    place: str


def read_settings(path: Path) -> Mapping[str, Setting]:
    """The file's entries by flag name, dashes in keys turned to underscores; an empty file has none.

    Raises ValueError, naming the file and the place, if it cannot be read or is anything but a flat mapping.
    """
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if root is None or root.tag == NULL_TAG:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"{path} must hold flags as `name: value` lines")
    settings: dict[str, Setting] = {}
    for key_node, value_node in root.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise ValueError(f"{path} line {_line(key_node)}: a flag's name expected")
        place = f"{path} line {_line(key_node)}, key {key_node.value}"
        name = str(key_node.value).replace("-", "_")
        if name in settings:
            raise ValueError(f"{place} stands there twice")
        settings[name] = Setting(_value(value_node, place), place)
    return settings


def _value(node: yaml.Node, place: str) -> str | tuple[str, ...]:
    match node:
        case yaml.ScalarNode():
            return _text(node)
        case yaml.SequenceNode() if all(isinstance(item, yaml.ScalarNode) for item in node.value):
            return tuple(_text(item) for item in node.value)
    raise ValueError(f"{place} must be one value or a list of values")


def _text(node: yaml.ScalarNode) -> str:
    return "" if node.tag == NULL_TAG else str(node.value)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
