"""Find what is served at a path: a fixed path by one lookup, a template such as `/jobs/{job_id}` segment by segment.

A literal segment takes precedence over a parameter, and a parameter over the rest of a path (`{name:path}`).
"""

from typing import Generic, TypeVar

T = TypeVar("T")


class _Node(Generic[T]):
    __slots__ = ("literals", "parameter", "rest", "value")

    def __init__(self) -> None:
        self.literals: dict[str, _Node[T]] = {}
        self.parameter: tuple[str, _Node[T]] | None = None
        self.rest: tuple[str, T] | None = None
        self.value: T | None = None


class Table(Generic[T]):
    def __init__(self) -> None:
        self._fixed: dict[str, T] = {}
        self._root: _Node[T] = _Node()

    def add(self, template: str, value: T) -> None:
        if "{" not in template:
            self._fixed[template] = value
        node, segments = self._root, template.lstrip("/").split("/")
        for place, segment in enumerate(segments):
            if not segment.startswith("{"):
                node = node.literals.setdefault(segment, _Node())
                continue
            name, _, kind = segment.strip("{}").partition(":")
            if kind == "path":
                if place != len(segments) - 1 or node.rest is not None:
                    raise ValueError(f"{template}: a `path` parameter must be the last segment, and the only one")
                node.rest = name, value
                return
            if node.parameter is None:
                node.parameter = name, _Node()
            elif node.parameter[0] != name:
                raise ValueError(f"{template}: the parameter {name} is named {node.parameter[0]} in another template")
            node = node.parameter[1]
        node.value = value

    def find(self, path: str) -> tuple[T, dict[str, str]] | None:
        """Return what is served at this decoded path, and its parameters."""
        value = self._fixed.get(path)
        if value is not None:
            return value, {}
        parameters: dict[str, str] = {}
        value = _walk(self._root, path.lstrip("/").split("/"), 0, parameters)
        return None if value is None else (value, parameters)


def _walk(node: _Node[T], segments: list[str], place: int, parameters: dict[str, str]) -> T | None:
    if place == len(segments):
        return node.value
    segment = segments[place]
    literal = node.literals.get(segment)
    if literal is not None and (found := _walk(literal, segments, place + 1, parameters)) is not None:
        return found
    if node.parameter is not None and segment:
        name, below = node.parameter
        if (found := _walk(below, segments, place + 1, parameters)) is not None:
            parameters[name] = segment
            return found
    if node.rest is not None:
        name, value = node.rest
        parameters[name] = "/".join(segments[place:])
        return value
    return None
