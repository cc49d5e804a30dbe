"""A driver for models behind an OpenAI-compatible chat-completions endpoint. Needs ``http``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Self, cast

from pydantic import SecretStr

from redis_state import limits
from redis_state.agents.runtime.chat import Malformed, read_answer, request_of
from redis_state.agents.runtime.llm import Turn
from redis_state.agents.state.inference import REDACTED, InferenceResponse, LlmConfig
from redis_state.agents.storage.protection import is_sealed
from redis_state.backoff import Backoff
from redis_state.errors import ConfigError
from redis_state.serialization import codec
from redis_state.timeouts import timeout

if TYPE_CHECKING:
    import ssl

    import httpx

_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
_OK = 200
_LONGEST_WAIT_S = 30.0


_IS_ASKING: ContextVar[bool] = ContextVar("redis_state_asking", default=False)


@cache
def _trusted() -> ssl.SSLContext:
    """Read the trusted certificates, once for all drivers: that takes longer than a call."""
    import httpx  # noqa: PLC0415 - needs the extra

    return httpx.create_ssl_context()


class ModelError(Exception):
    """A model could not be called, or did not answer. ``status`` is that of HTTP, 0 without one."""

    def __init__(self, problem: str, *, status: int = 0) -> None:
        super().__init__(problem)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Endpoint:
    url: str
    key: str
    model: str


class ChatDriver:
    """A driver that calls a model at ``<api_url>/chat/completions``.

    A session's `LlmConfig` takes precedence over the driver's values. The driver's own key goes to
    the driver's own ``api_url`` only. ``options`` are fields of the request, such as
    ``temperature``. A lost connection, a busy or failing server and an unreadable answer are
    retried, ``attempts`` times in all. An attempt may take ``timeout_s``, however slowly its answer
    comes. Errors, in the step that called it: ModelError, which shows neither the key nor the
    conversation.
    """

    def __init__(
        self,
        model: str = "",
        *,
        api_url: str = "https://api.openai.com/v1",
        api_key: SecretStr | None = None,
        options: Mapping[str, Any] | None = None,
        timeout_s: float = 120.0,
        attempts: int = 3,
        wait_s: float = 0.5,
    ) -> None:
        try:
            import httpx  # noqa: PLC0415 - needs the extra
        except ModuleNotFoundError:
            problem = "ChatDriver needs the extra 'http': pip install redis_state[http]"
            raise ConfigError(problem) from None
        with limits.options():
            self._timeout_s = limits.seconds("timeout_s", timeout_s)
            limits.seconds("wait_s", wait_s, least=0)
            self._attempts = limits.count("attempts", attempts)
        self._client = httpx.AsyncClient(verify=_trusted(), timeout=timeout_s)
        self._failures: tuple[type[Exception], ...] = (
            TimeoutError,
            httpx.HTTPError,
            httpx.InvalidURL,
        )
        self._model = model
        self._api_url = api_url.rstrip("/")
        self._api_key = "" if api_key is None else api_key.get_secret_value()
        self._options = dict(options or {})
        self._wait_s = wait_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def respond(self, turn: Turn) -> InferenceResponse:
        """Ask the model. Errors: ModelError."""
        config = turn.state.llm_config or LlmConfig()
        endpoint = self._endpoint(config)
        options = {**self._options, **config.options}
        body = codec.encode(request_of(turn, model=endpoint.model, config=config, options=options))
        params = {
            name: str(value)
            for name, value in config.query_params.items()
            if value != REDACTED and not is_sealed(str(value))
        }
        backoff_s = Backoff(self._wait_s, _LONGEST_WAIT_S)
        for attempt in range(1, self._attempts + 1):
            wait_s = backoff_s.after(attempt)
            try:
                with _asking():
                    # The client's own timeout begins again with each byte.
                    async with timeout(self._timeout_s):
                        answer = await self._client.post(
                            endpoint.url,
                            content=body,
                            params=params,
                            headers=_headers(endpoint.key),
                        )
                if answer.status_code == _OK:
                    return read_answer(answer.content, turn)
                problem = ModelError(_refusal(answer), status=answer.status_code)
                if answer.status_code not in _TRANSIENT:
                    raise problem
                wait_s = _retry_after_s(answer, wait_s)
            except Malformed as malformed:
                problem = ModelError(f"the model's answer cannot be read: {malformed}", status=_OK)
            except self._failures as failure:
                # Its text may hold the address, and with it a key.
                problem = ModelError(f"the model cannot be asked: {type(failure).__name__}")
            if attempt == self._attempts:
                raise problem from None
            await asyncio.sleep(min(wait_s, _LONGEST_WAIT_S))
        raise AssertionError  # pragma: no cover - the last attempt returned or raised

    def _endpoint(self, config: LlmConfig) -> _Endpoint:
        base = config.api_url.rstrip("/") or self._api_url
        own = config.api_key
        if not own or own == REDACTED or is_sealed(own):
            # A session may name any address: it does not get a key that is not its own.
            own = self._api_key if base == self._api_url else ""
        path = config.endpoint or "/chat/completions"
        model = config.model or self._model
        if not model:
            raise ModelError("no model is named, neither by the driver nor by the session")
        return _Endpoint(f"{base}/{path.lstrip('/')}", own, model)


class _WithoutQuery(logging.Filter):
    """Leaves an address's parameters, which may hold a key, out of what httpx logs for us."""

    def filter(self, record: logging.LogRecord) -> bool:
        if _IS_ASKING.get() and isinstance(record.args, tuple):
            record.args = tuple(
                str(each).partition("?")[0] if "?" in str(each) else each for each in record.args
            )
        return True


_WITHOUT_QUERY = _WithoutQuery()


@contextmanager
def _asking() -> Generator[None, None, None]:
    logging.getLogger("httpx").addFilter(_WITHOUT_QUERY)  # once, however often
    token = _IS_ASKING.set(True)
    try:
        yield
    finally:
        _IS_ASKING.reset(token)


def _headers(key: str) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    return headers | {"Authorization": f"Bearer {key}"} if key else headers


def _refusal(answer: httpx.Response) -> str:
    """Return the reason as names of errors. Their texts may quote what was sent."""
    try:
        error: Any = codec.decode(answer.content)["error"]
        names = [cast("Mapping[str, Any]", error).get(name) for name in ("type", "code")]
    except (ValueError, TypeError, KeyError, AttributeError):
        names = []
    words = [name for name in names if isinstance(name, str) and name.replace("_", "").isalnum()]
    return f"the model's server answers {answer.status_code}" + "".join(f", {w}" for w in words)


def _retry_after_s(answer: httpx.Response, otherwise: float) -> float:
    try:
        return float(answer.headers["retry-after"])
    except (KeyError, ValueError):
        return otherwise
