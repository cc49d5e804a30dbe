"""Who logs in: credentials that change while connections live.

A provider is called before a connection, and again before its credentials end. Those who need them
meanwhile share one answer. A connection for calls then sends AUTH between two calls. One that
listens may not: it is made again. Until the provider gives others, connections stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from importlib import import_module
from inspect import isawaitable, isclass
from math import isnan
from pathlib import Path
from stat import S_ISREG
from time import monotonic
from typing import Any, Final

from pydantic import SecretStr
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, AuthorizationError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from redis_state.errors import BackendError, ConfigError
from redis_state.settings import Credentials, Settings

log: logging.Logger = logging.getLogger(__name__)

# When to ask again, as a part of the time for which credentials are valid.
_RENEW_PART = 0.8
# How long credentials are used that say nothing about it; providers keep them themselves.
_UNSAID_S = 60.0
# How soon a change of a password's file is noticed.
_FILE_S = 5.0
# Of a password's file; a token is a few thousand.
_FILE_BYTES = 1 << 20
_AGAIN_S = 1.0
_ANSWER_PART = 0.8
_SOONEST_S = 0.02
# What a loop's timer can hold.
_LATEST_S = 86_400.0
# How many calls of a provider may be under way that were given up.
_MOST_STUCK = 8


class LoginFailed(RedisConnectionError):
    """There are no credentials. ``final`` if another try is useless."""

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final: bool = final


class Login:
    """The credentials of one event loop's connections to a server, or to a set."""

    def __init__(self, provider: Any, *, named: str, limit_s: float) -> None:
        self._provider = provider
        self._named = named
        # Sooner than the connection is given up, whose error would not name the provider.
        self._limit_s = limit_s * _ANSWER_PART
        self._known: Credentials | None = None
        self._due_at = 0.0
        # When it may be called again for what a server refuses.
        self._again_at = 0.0
        self._asking: asyncio.Task[Credentials] | None = None
        # Calls of the provider that were given up, and have not ended yet.
        self._stuck: set[asyncio.Task[Any]] = set()
        # Counts the changes.
        self.version: int = 0

    async def current(self) -> Credentials:
        """Return the credentials of now. Errors: LoginFailed."""
        if self._known is not None and monotonic() < self._due_at:
            return self._known
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="redis_state credentials")
            # Nobody may be left to hear of it.
            self._asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._asking)

    def reject(self, credentials: Credentials) -> bool:
        """Ask the provider before they are used again: a server has refused them.

        At once, and then once a second: it may cost something, or have a quota. Return whether
        others may be had now.
        """
        now = monotonic()
        at = max(now, self._again_at)
        if self._known is credentials and at < self._due_at:
            self._due_at, self._again_at = at, at + _AGAIN_S
        return self._known is not credentials or self._due_at <= now

    def for_redis_py(self, user: str | None = None) -> LoginProvider:
        """Return what redis-py asks before it logs in. ``user`` is the URL's."""
        return LoginProvider(self, user)

    async def renew(
        self, used: Credentials, accept: Callable[[Credentials], Awaitable[None]]
    ) -> None:
        """Give a connection other credentials before its own end, again and again.

        ``accept`` raises BackendError if the server refuses them. The connection stays as it is.
        """
        while True:
            await asyncio.sleep(min(max(_SOONEST_S, self._due_at - monotonic()), _LATEST_S))
            for _ in range(2):
                try:
                    fresh = await self.current()
                except LoginFailed as error:
                    log.warning("the login stays as it is: %s", error)
                    break
                if fresh.alike(used):
                    break
                try:
                    await accept(fresh)
                except BackendError as error:
                    # The provider may have been quicker than the server, or slower.
                    log.warning("the login stays as it is: %s", type(error).__name__)
                    if not self.reject(fresh):
                        break
                except Exception as error:  # noqa: BLE001 - the next one may do
                    log.warning("the login stays as it is: %s", type(error).__name__)
                    self.reject(fresh)
                    break
                else:
                    used = fresh
                    break
            if monotonic() >= self._due_at:
                await asyncio.sleep(_AGAIN_S)

    def _forget(self, providing: asyncio.Task[Any]) -> None:
        self._stuck.discard(providing)
        if not providing.cancelled():
            # It was given up: nobody is left to hear of it.
            providing.exception()

    async def _ask(self) -> Credentials:
        if len(self._stuck) >= _MOST_STUCK:
            raise LoginFailed(f"{self._named} does not end")
        # In a task of its own: one that does not end when it is cancelled holds nobody up.
        providing = asyncio.create_task(_given_by(self._provider), name="redis_state provider")
        try:
            await asyncio.wait({providing}, timeout=self._limit_s)
        finally:
            if not providing.done():
                providing.cancel()
                self._stuck.add(providing)
                providing.add_done_callback(self._forget)
        if not providing.done():
            raise LoginFailed(f"{self._named} gave no credentials within the deadline")
        try:
            given = providing.result()
        except LoginFailed:
            raise
        except asyncio.CancelledError:
            # Of the provider's own: for a caller it would be its own end.
            raise LoginFailed(f"{self._named} failed: CancelledError") from None
        except Exception as error:  # noqa: BLE001 - its text may hold what is secret
            raise LoginFailed(f"{self._named} failed: {type(error).__name__}") from None
        if not isinstance(given, Credentials):
            what = f"{self._named} gave {type(given).__name__}: Credentials are needed"
            raise LoginFailed(what, final=True)
        _check(given, self._named)
        if not given.alike(self._known):
            self.version += 1
        self._known = given
        valid_s = _UNSAID_S if given.valid_s is None else given.valid_s
        self._due_at = monotonic() + valid_s * _RENEW_PART
        return given


def _check(given: Credentials, named: str) -> None:
    """Errors: LoginFailed for what cannot be sent."""
    parts: list[Any] = [given.password, given.user]
    if not isinstance(parts[0], SecretStr) or not isinstance(parts[1], str | None):
        raise LoginFailed(f"{named} gave a user or a password of a wrong type", final=True)
    valid_s: Any = given.valid_s
    if valid_s is not None and (
        not isinstance(valid_s, float | int) or isinstance(valid_s, bool) or isnan(valid_s)
    ):
        raise LoginFailed(f"{named} gave a valid_s that is no number of seconds", final=True)
    try:
        f"{given.user}{given.password.get_secret_value()}".encode()
    except UnicodeEncodeError:
        what = f"{named} gave a user or a password that is no text in UTF-8"
        raise LoginFailed(what, final=True) from None


class LoginProvider(CredentialProvider):
    """A login as redis-py wants it: called for each connection."""

    def __init__(self, login: Login, user: str | None) -> None:
        self.login: Final = login
        self._user = user
        # What was given last.
        self.used: Credentials | None = None

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Refuse: it takes an event loop."""
        raise NotImplementedError

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """Return the user, if there is one, and the password. Errors: LoginFailed."""
        self.used = await self.login.current()
        return self.words(self.used)

    def words(self, credentials: Credentials) -> tuple[str] | tuple[str, str]:
        """Return what follows AUTH."""
        user, password = credentials.user or self._user, credentials.password.get_secret_value()
        return (user, password) if user else (password,)


def provider_in(connection: Any) -> LoginProvider | None:
    """Return who gives a connection of redis-py its credentials, if they may change."""
    provider = getattr(connection, "credential_provider", None)
    return provider if isinstance(provider, LoginProvider) else None


async def connect_and_log_in(connection: Any) -> None:
    """Connect; with what the provider gives now, if what it gave before is refused.

    Errors: as redis-py has them.
    """
    try:
        await connection.connect()
    except RedisError as error:
        provider = provider_in(connection)
        if provider is None or provider.used is None or not _is_refused(error):
            raise
        if not provider.login.reject(provider.used):
            raise
        await connection.connect()


def _is_refused(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, AuthenticationError | AuthorizationError):
        error = error.__cause__ or error.__context__
    return error is not None


class PasswordFile:
    """A file that holds the password, as Kubernetes mounts a secret. It may be replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __call__(self) -> Credentials:
        """Read the file. Errors: LoginFailed names it."""
        try:
            text = await asyncio.to_thread(_read, self._path)
        except (OSError, ValueError) as error:
            what = f"the password file {self._path} cannot be read: {type(error).__name__}"
            raise LoginFailed(what) from None
        password = text.rstrip("\r\n")
        if not password:
            raise LoginFailed(f"the password file {self._path} is empty")
        return Credentials(SecretStr(password), valid_s=_FILE_S / _RENEW_PART)


def _read(path: Path) -> str:
    """Read a file. Errors: OSError, ValueError; LoginFailed for what is none."""
    # One that nobody writes to, as a FIFO, would keep the thread.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not S_ISREG(os.fstat(descriptor).st_mode):
            raise LoginFailed(f"the password file {path} is no regular file")
        return os.read(descriptor, _FILE_BYTES).decode()
    finally:
        os.close(descriptor)


def provider_of(settings: Settings) -> tuple[Any, str] | None:
    """Return the settings' provider, and what errors call it; None without one.

    It is an object, or what ``package.module:name`` names. A class is called for one. Errors:
    ConfigError.
    """
    given, path = settings.credentials, settings.password_file
    if path is not None:
        if given is not None:
            raise ConfigError("credentials and password_file are two ways to log in: give one")
        return PasswordFile(path), "the password file"
    if given is None:
        return None
    found = given
    if isinstance(given, str):
        module, colon, name = given.partition(":")
        try:
            found = getattr(import_module(module), name) if colon and name else None
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"credentials={given!r} cannot be imported: {error}") from None
    if isclass(found):
        found = found()
    if not (callable(found) or hasattr(found, "get_credentials_async")):
        raise ConfigError("credentials must be a provider, or package.module:name of one")
    name = given if isinstance(given, str) else type(found).__qualname__
    return found, f"the provider {getattr(found, '__qualname__', name)}"


def login_of(settings: Settings) -> Login | None:
    """Make the login of an event loop; None if the URL has it. Errors: ConfigError."""
    provided = provider_of(settings)
    if provided is None:
        return None
    provider, named = provided
    return Login(provider, named=named, limit_s=settings.connect_timeout_s)


async def _given_by(provider: Any) -> Any:
    if hasattr(provider, "get_credentials_async"):
        words: Any = await provider.get_credentials_async()
        user, password = words if len(words) > 1 else (None, words[0])
        return Credentials(SecretStr(password), user or None)
    given = provider()
    return await given if isawaitable(given) else given
