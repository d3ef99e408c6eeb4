"""A configuration as dotted keys."""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's nested values with dotted keys, as YAML gives them back."""

    def walk(prefix: str, node: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(node, dict) and node:
            for key, value in node.items():
                yield from walk(f"{prefix}{key}.", value)
        else:
            yield prefix[:-1], node

    return dict(walk("", OmegaConf.to_container(OmegaConf.create(OmegaConf.to_yaml(OmegaConf.create(dict(values)))))))
