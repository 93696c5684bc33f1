"""Routes of an HTTP API, registered beside their handlers.

An API has one `RouteTable`. Its own `route` decorator builds a route (any value with a method and a path)
from its arguments and the decorated function, and adds it to the table:

    ROUTES: RouteTable[Route] = RouteTable()

    def route(method: str, path: str, ...) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            ROUTES.add(Route(method, path, handler, ...))
            return handler

        return add

    @route("POST", "queues/{queue}/receive", permission="receive")
    def receive(call: Call) -> None: ...

A path is relative to the prefix of the API. `{name}` matches one segment; a literal segment that matches too
takes precedence. `find` returns the route and the segments of its names, as received: the caller decodes
them. The table is complete once the modules of the handlers are imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class AnyRoute(Protocol):
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...


R = TypeVar("R", bound=AnyRoute)


class RouteTable(Generic[R]):
    """The routes of one API in the order in which they were added, and the search by method and path."""

    def __init__(self) -> None:
        self._routes: list[R] = []
        self._trees: dict[str, _PathNode[R]] = {}

    def add(self, route: R) -> None:
        self._routes.append(route)
        self._trees.setdefault(route.method, _PathNode()).add(route.path.split("/"), route)

    def __iter__(self) -> Iterator[R]:
        return iter(self._routes)

    def __len__(self) -> int:
        return len(self._routes)

    def find(self, method: str, segments: list[str]) -> tuple[R, list[str]] | None:
        """The route and the segments for its `{names}`, in their order."""
        tree = self._trees.get(method)
        names: list[str] = []
        route = None if tree is None else tree.find(segments, 0, names)
        return None if route is None else (route, names)

    def methods(self, segments: list[str]) -> list[str]:
        """The methods that have a route for this path, sorted: for 405 and `Allow`."""
        return sorted(
            method for method, tree in self._trees.items() if tree.find(segments, 0, []) is not None
        )


class _PathNode(Generic[R]):
    __slots__ = ("any", "literals", "route")

    def __init__(self) -> None:
        self.literals: dict[str, _PathNode[R]] = {}
        self.any: _PathNode[R] | None = None
        self.route: R | None = None

    def add(self, segments: list[str], route: R) -> None:
        if not segments:
            assert self.route is None, f"two routes for {route.method} {route.path}"
            self.route = route
        elif segments[0].startswith("{"):
            if self.any is None:
                self.any = _PathNode()
            self.any.add(segments[1:], route)
        else:
            self.literals.setdefault(segments[0], _PathNode()).add(segments[1:], route)

    def find(self, segments: list[str], at: int, names: list[str]) -> R | None:
        if at == len(segments):
            return self.route
        segment = segments[at]
        literal = self.literals.get(segment)
        if literal is not None:
            found = literal.find(segments, at + 1, names)
            if found is not None:
                return found
        if self.any is None:
            return None
        names.append(segment)
        found = self.any.find(segments, at + 1, names)
        if found is None:
            names.pop()
        return found
