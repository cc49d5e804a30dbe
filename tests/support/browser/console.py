"""A browser without a screen: it keeps cookies, follows links and sends the forms of a page."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from redis_state.gateway import ApiKeys, make_api_key
from redis_state.http_client.requests.caller import tls_for

HERE = "https://console.test"


class Page(HTMLParser):
    """A page as a browser parses it: elements, their attributes, forms and text."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(convert_charrefs=True)
        self.status = response.status_code
        self.url = str(response.url)
        self.source = response.text
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.forms: list[Form] = []
        self._text: list[str] = []
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect an element."""
        named = {name: value or "" for name, value in attrs}
        self.elements.append((tag, named))
        if tag == "form":
            self.forms.append(Form(named.get("action", ""), named.get("method", "get"), {}))
        elif tag in ("input", "textarea", "select") and self.forms and "name" in named:
            self._add(named)

    def _add(self, named: dict[str, str]) -> None:
        if named.get("type") != "checkbox" or "checked" in named:
            self.forms[-1].add(named["name"], named.get("value", ""))

    def handle_data(self, data: str) -> None:
        """Collect text."""
        self._text.append(data)

    @property
    def text(self) -> str:
        """The text that a person reads."""
        return re.sub(r"\s+", " ", " ".join(self._text))

    def links(self, part: str = "") -> list[str]:
        """The links whose address has a part."""
        found = [named["href"] for tag, named in self.elements if tag == "a" and "href" in named]
        return [each for each in found if part in each]

    def form(self, action: str) -> Form:
        """The first form that is sent to an address with this part."""
        return next(each for each in self.forms if action in each.action)


class Form:
    """A form of a page."""

    def __init__(self, action: str, method: str, fields: dict[str, str]) -> None:
        self.action = html.unescape(action)
        self.method = method
        self.fields = fields
        # Values of a name that has others too; the last one is in the fields.
        self.earlier: list[tuple[str, str]] = []

    def add(self, name: str, value: str) -> None:
        """Add a field."""
        if name in self.fields:
            self.earlier.append((name, self.fields[name]))
        self.fields[name] = value


class Browser:
    """Sends what a browser sends."""

    def __init__(
        self, app: Any, *, base: str = HERE, mount: str = "", over_socket: bool = False
    ) -> None:
        self.mount = mount
        transport = None if over_socket else httpx.ASGITransport(app)
        self.http = httpx.AsyncClient(
            transport=transport,
            base_url=base,
            follow_redirects=True,
            timeout=30,
            verify=tls_for(base),
        )

    async def log_in(self, credential: str) -> Page:
        """Fill in the form to log in."""
        page = await self.get("/login")
        return await self.send(page.form("/login"), credential=credential)

    async def get(self, path: str = "", **query: str) -> Page:
        """Open a page of the console."""
        asked = "&".join(f"{name}={_quoted(value)}" for name, value in query.items())
        address = f"{self.mount}/console{path}" + (f"?{asked}" if asked else "")
        return Page(await self.http.get(address, headers={"sec-fetch-site": "same-origin"}))

    async def follow(self, link: str) -> Page:
        """Open a link."""
        return Page(await self.http.get(link, headers={"sec-fetch-site": "same-origin"}))

    async def send(self, form: Form, **fields: str) -> Page:
        """Send a form with these fields filled in."""
        earlier = [(name, value) for name, value in form.earlier if name not in fields]
        pairs = [*earlier, *(form.fields | fields).items()]
        body = "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in pairs)
        response = await self.http.post(
            form.action,
            content=body,
            headers={
                "content-type": "application/x-www-form-urlencoded",
                "sec-fetch-site": "same-origin",
                "origin": "{0.scheme}://{0.netloc}".format(urlsplit(str(self.http.base_url))),
            },
        )
        return Page(response)


def keys_for(**subjects: str) -> tuple[ApiKeys, dict[str, str]]:
    """Make keys for subjects with scopes, written with spaces; return them, and their texts."""
    made = {name: make_api_key(name, scopes.split()) for name, scopes in subjects.items()}
    return ApiKeys([kept for _, kept in made.values()]), {
        name: key for name, (key, _) in made.items()
    }


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")
