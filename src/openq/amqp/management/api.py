"""RabbitMQ's management HTTP API, as far as tools and scripts use it: `/api/...` on the HTTP port.

Names and shapes are RabbitMQ's. Fields without a counterpart in OpenQ are left out. Lists are built in a
thread: ten thousand queues must not delay messages.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from urllib.parse import unquote

from ...auth.failed_logins import NO_CREDENTIALS, NOT_GUEST, UNKNOWN_SCHEME
from ...auth.guard import Principal, read_basic
from ...server.audit import shown_detail
from ...server.context import ServerContext
from ...server.http_request import HttpRequest
from ..access import GUEST
from ..topology import Topology

# Importing the modules of the handlers registers their routes.
from . import bindings as bindings
from . import connections as connections
from . import exchanges as exchanges
from . import overview as overview
from . import policies as policies
from . import queues as queues
from . import users as users
from . import vhosts as vhosts
from .call import ManagementCall, ManagementError, Rates, not_found
from .routes import PREFIX, ROUTES, ManagementRoute

PROTOCOL = "management"  # in the log of logins and in the audit log


class ManagementApi:
    def __init__(self, context: ServerContext, topology: Topology) -> None:
        self.context = context
        self.topology = topology
        self.node = f"openq@{socket.gethostname()}"
        self.ports: dict[str, int] = {}  # protocol -> port, set by the server
        self.rates = Rates(context.now_ms)

    def handle(self, request: HttpRequest) -> None:
        call = ManagementCall(self, request)
        try:
            principal = self._authenticate(call)
            if principal is not None:
                self._dispatch(call, principal)
        except Exception as error:
            call.fail(error)

    def _authenticate(self, call: ManagementCall) -> Principal | None:
        """The caller; None while a thread checks the password: it continues the request."""
        request, guard = call.request, self.context.guard
        scheme, _, value = (request.header(b"authorization") or b"").partition(b" ")
        is_basic = scheme.lower() == b"basic"
        if guard.is_open:
            # As in AMQP, an open server accepts no other name than guest.
            if is_basic and read_basic(value) != (GUEST, GUEST):
                raise guard.refused.refuse(PROTOCOL, "", request.peer, NOT_GUEST)
            return guard.open_principal()
        if scheme.lower() == b"bearer":
            return guard.bearer(value.strip().decode("latin-1"), request.peer, PROTOCOL)
        if not is_basic:
            raise guard.refused.refuse(
                PROTOCOL, "", request.peer, UNKNOWN_SCHEME if scheme else NO_CREDENTIALS
            )
        user, password = guard.read_basic(value, request.peer, PROTOCOL)
        cached = guard.cached_login(user, password, request.peer, PROTOCOL)
        if cached is not None:
            return cached

        def authenticated(principal: Principal | None, error: BaseException | None) -> None:
            try:
                if error is not None:
                    raise error
                assert principal is not None
                self._dispatch(call, principal)
            except Exception as problem:
                call.fail(problem)

        # Password hashing is slow by design: not on the loop.
        self.context.check(lambda: guard.basic(user, password, request.peer, PROTOCOL), authenticated)
        return None

    def _audit(self, call: ManagementCall, route: ManagementRoute, path: str) -> None:
        """Requests that change something; of those that only read, refusals that need an admin."""
        is_change = route.method != "GET" and not route.path.endswith(("/publish", "/get"))
        if not is_change and route.permission != "admin":
            return
        action = f"{route.method} {route.path}"
        detail = self.context.audit.watch(
            call.request,
            PROTOCOL,
            action,
            "/".join(call.names),
            call.principal.user,
            only_refused=not is_change,
        )
        # Definitions of a whole server are not repeated here.
        if is_change and not route.path.startswith(("definitions", "all-configuration")):
            with suppress(ManagementError):
                detail.update(shown_detail(call.body()))

    def _dispatch(self, call: ManagementCall, principal: Principal) -> None:
        call.principal = principal
        request = call.request
        request.user = principal.user
        method = "GET" if request.method == "HEAD" else request.method
        path = request.path[len(PREFIX) :].rstrip("/")
        segments = [unquote(segment) for segment in path.split("/")]
        found = ROUTES.find(method, segments)
        if found is None:
            if ROUTES.methods(segments):
                raise ManagementError(405, "method_not_allowed", f"{method} is not allowed for {path[:200]}")
            raise not_found()
        route, call.names = found
        self._audit(call, route, path)
        if route.permission == "admin":
            call.require_admin()
        elif route.permission == "monitor":
            call.require_monitoring()
        route.handler(call)
