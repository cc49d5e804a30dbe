"""Forms that were not sent, because their login had ended: kept while a person logs in.

The page to log in carries the form in fields of its own. Once the person is known, the page of the
form is shown with what was written. Nothing is done before the person sends it again.
"""

from __future__ import annotations

from dataclasses import replace

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response

from redis_state.gateway.answers import HttpProblem
from redis_state.gateway.console.login.logins import COOKIE
from redis_state.gateway.console.pages import ConsolePage, PageCall, problem_page, read_fields

_ENDED = "log in first: your login has ended, and nothing was done"
_BACK = "This was not sent: your login had ended. Check it, and send it."
# What belongs to the form to log in, or to the login that has ended.
_OTHERS = frozenset({"credential", "form_token"})


def ask_login(call: PageCall) -> Response:
    """Answer a form whose login has ended: show the page to log in, which keeps it."""
    if not call.form or call.backstage.page_of_form(call.here.partition("?")[0]) is None:
        raise HttpProblem(401, "unauthenticated", "log in first: your login has ended")
    return login_page(call, sent_to=call.here, message=_ENDED, status=401)


def login_page(
    call: PageCall,
    *,
    back: str = "/",
    sent_to: str | None = None,
    message: str | None = None,
    status: int = 200,
) -> Response:
    """Show the page to log in, for a page to go ``back`` to, or a form that is kept."""
    kept = [
        (name, text)
        for name, texts in call.form.items()
        if sent_to is not None and name not in _OTHERS
        for text in texts
    ]
    return call.page(
        "login.html", status=status, back=back, sent_to=sent_to, kept=kept, message=message
    )


async def give_back(call: PageCall, page: ConsolePage, problem: HttpProblem) -> Response:
    """Show a form that was refused with what was written, as one of the login of now."""
    if page.shown is None:
        raise problem
    response = await page.shown(replace(call, notice=f"Nothing was done: {problem.message}"))
    response.status_code = problem.status
    return response


async def after_login(call: PageCall, cookie: str, sent_to: str) -> Response | None:
    """Show the form that a page to log in has kept, to who has logged in; None if there is none."""
    path, _, query = sent_to.partition("?")
    page = call.backstage.page_of_form(path)
    if page is None or page.shown is None:
        return None
    request = _with_cookie(call.request, cookie)
    principal = await call.backstage.logins.authenticate(request)
    if principal is None:
        return None
    form = {name: texts for name, texts in call.form.items() if name not in _OTHERS}
    kept = replace(
        call,
        request=request,
        principal=principal,
        query=read_fields(query),
        form=form,
        notice=_BACK,
    )
    try:
        return await page.shown(kept)
    except HttpProblem as problem:
        return problem_page(kept, problem)


def _with_cookie(request: Request, cookie: str) -> Request:
    """Return a request as it will be with the cookie of a new login."""
    scope = {**request.scope, "headers": list(request.scope["headers"])}
    MutableHeaders(scope=scope)["cookie"] = f"{COOKIE}={cookie}"
    return Request(scope)
