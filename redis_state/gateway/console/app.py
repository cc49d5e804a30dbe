"""All pages of the console, and what they are served with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from redis_state.gateway.auth.principal import Authenticator
from redis_state.gateway.console.assets import NAMES, asset_response
from redis_state.gateway.console.login.logins import Logins
from redis_state.gateway.console.options import ConsoleOptions
from redis_state.gateway.console.pages import ConsolePage, PageCall
from redis_state.gateway.console.serving import NoPage, PageRoute
from redis_state.gateway.console.shared import SharedReads
from redis_state.gateway.console.views import find, inbox, login, overview, pool, session, task
from redis_state.gateway.requests.limits import CallerUsage

PAGES: tuple[ConsolePage, ...] = (
    *login.PAGES,
    *overview.PAGES,
    *inbox.PAGES,
    *task.PAGES,
    *find.PAGES,
    *session.PAGES,
    *pool.PAGES,
)

_FORMS = {each.path: each for each in PAGES if each.method == "POST" and not each.public}


class ConsolePages:
    """The console of one gateway."""

    def __init__(
        self,
        options: ConsoleOptions,
        *,
        auth: Authenticator,
        usage: CallerUsage,
        max_body_bytes: int,
        services: Callable[[], Awaitable[Any]],
    ) -> None:
        self.logins: Logins = Logins(auth, options)
        self.usage: CallerUsage = usage
        self.max_body_bytes: int = max_body_bytes
        self.login_by_url: bool = options.login_by_url
        self.banner: Callable[[], str | None] | None = options.banner
        self.overviews: SharedReads = SharedReads()
        self._services = services

    async def services(self) -> Any:
        """Return what operations work with."""
        return await self._services()

    def page_of_form(self, path: str) -> ConsolePage | None:
        """Return what a form is sent to, for those who have logged in."""
        return _FORMS.get(path)

    def routes(self) -> list[BaseRoute]:
        """Return the routes of all pages and files."""
        paths: dict[str, list[ConsolePage]] = {}
        for page in (*PAGES, *map(_asset, NAMES)):
            paths.setdefault(page.path, []).append(page)
        found: list[BaseRoute] = [PageRoute(self, path, its) for path, its in paths.items()]
        return [*found, Route("/", _begin, methods=["GET", "HEAD"]), NoPage(self)]


def _asset(name: str) -> ConsolePage:
    async def read(call: PageCall) -> Response:
        del call
        return asset_response(name)

    return ConsolePage("GET", f"/static/{name}", read, public=True)


async def _begin(request: Request) -> Response:
    """Redirect to the console; with ``?token=``, through the login."""
    root = request.scope.get("root_path", "")
    query = request.scope.get("query_string", b"").decode("latin-1")
    page = "/console/login" if "token" in request.query_params else "/console"
    return RedirectResponse(f"{root}{page}" + (f"?{query}" if query else ""), 303)
