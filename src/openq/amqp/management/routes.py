"""The routes of the management API: `@route` registers a handler with its path and its permission.

admin     the role admin
monitor   may look at the whole server
object    the handler checks the objects that the request names or lists
user      any user
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ...server.routes import RouteTable

if TYPE_CHECKING:
    from .call import ManagementCall

PREFIX = "/api/"

Handler = Callable[["ManagementCall"], None]
Permission = Literal["admin", "monitor", "object", "user"]


@dataclass(frozen=True, slots=True)
class ManagementRoute:
    method: str
    path: str  # below /api/
    handler: Handler
    permission: Permission


ROUTES: RouteTable[ManagementRoute] = RouteTable()


def route(method: str, path: str, *, permission: Permission = "object") -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        ROUTES.add(ManagementRoute(method, path, handler, permission))
        return handler

    return add
