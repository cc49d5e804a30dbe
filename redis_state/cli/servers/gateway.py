"""The command that serves the gateway, and the one that makes its keys."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from redis_state import RedisStateStore
from redis_state.cli.commands import Url, app
from redis_state.cli.exit_codes import or_exit
from redis_state.cli.output import print_line
from redis_state.cli.servers.open_files import raise_open_files
from redis_state.errors import CallerError, ConfigError, InvalidField

if TYPE_CHECKING:
    import uvicorn

    from redis_state.gateway import Authenticator, Gateway, GatewayLimits

gateway: typer.Typer = typer.Typer(
    name="gateway",
    invoke_without_command=True,
    no_args_is_help=False,
)

_GOODBYE_S = 5
# Beside its clients: connections to the server, and files.
_OWN_FILES = 64


@dataclass(frozen=True, slots=True)
class AuthOptions:
    """From where callers are known."""

    keys: Path | None
    jwt_secret_file: Path | None
    jwks_url: str | None
    jwt_audience: str | None
    jwt_issuer: str | None
    browser_secret_file: Path | None

    def authenticator(self) -> Authenticator | None:
        """Make what knows callers; None if there is no option for it. Errors: ConfigError."""
        from redis_state.gateway import (  # noqa: PLC0415 - needs the extra
            AnyOf,
            ApiKeys,
            BrowserTokens,
            JwtAuthenticator,
        )

        ways: list[Authenticator] = []
        if self.keys is not None:
            ways.append(ApiKeys.from_file(self.keys))
        if self.browser_secret_file is not None:
            ways.append(BrowserTokens(self.browser_secret_file))
        if self.jwt_secret_file is not None or self.jwks_url is not None:
            ways.append(
                JwtAuthenticator(
                    self.jwt_secret_file,
                    audience=self.jwt_audience or "",
                    issuer=self.jwt_issuer,
                    jwks_url=self.jwks_url,
                )
            )
        return AnyOf(*ways) if ways else None


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """What one caller may use. 0 is any number, where the option says so."""

    max_body_bytes: int
    max_append_bytes: int
    requests_per_s: float
    burst: int
    streams: int
    kept_streams: int

    def limits(self) -> GatewayLimits:
        """Make the gateway's limits. Errors: InvalidField."""
        from redis_state.gateway import GatewayLimits  # noqa: PLC0415 - needs the extra

        return GatewayLimits(
            max_body_bytes=self.max_body_bytes,
            max_append_bytes=self.max_append_bytes,
            requests_per_s=self.requests_per_s or None,
            burst=self.burst,
            streams=self.streams,
            kept_streams=self.kept_streams or None,
        )


@gateway.callback()
def serve(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port.")] = 8787,
    keys: Annotated[
        Path | None, typer.Option(help="A file of API keys: see `redis-state gateway key`.")
    ] = None,
    jwt_secret_file: Annotated[
        Path | None,
        typer.Option(help="Accept JWT signed by HS256: a file with the secret, or JSON by kid."),
    ] = None,
    jwks_url: Annotated[
        str | None, typer.Option(help="Accept JWT of a provider: where its public keys are.")
    ] = None,
    jwt_audience: Annotated[
        str | None, typer.Option(help="The audience that a JWT has to name.")
    ] = None,
    jwt_issuer: Annotated[str | None, typer.Option(help="The issuer of JWT.")] = None,
    browser_secret_file: Annotated[
        Path | None, typer.Option(help="Accept tokens of BrowserTokens: a file with the secret.")
    ] = None,
    hook_secret_file: Annotated[
        Path | None, typer.Option(help="Serve links of HookLinks: a file with the secret.")
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(help="An origin whose pages may call; may be repeated.")
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A host name to serve; may be repeated. Default: any. Probes of health need none."
        ),
    ] = None,
    queue: Annotated[str | None, typer.Option(help="The queue of submitted tasks.")] = None,
    max_body_bytes: Annotated[
        int, typer.Option(min=1, help="The size of a request's body at most.")
    ] = 64 * 1024,
    max_append_bytes: Annotated[
        int, typer.Option(min=1, help="The size of one append to a durable stream at most.")
    ] = 1024 * 1024,
    requests_per_s: Annotated[
        float, typer.Option(min=0, help="Requests of a caller in a second; 0 for any number.")
    ] = 50,
    burst: Annotated[
        int, typer.Option(min=1, help="Requests that a caller may make at once.")
    ] = 200,
    streams: Annotated[
        int, typer.Option(min=1, help="Streams that a caller may have open at once.")
    ] = 64,
    kept_streams: Annotated[
        int,
        typer.Option(min=0, help="Durable streams that a caller may keep; 0 for any number."),
    ] = 10_000,
    console: Annotated[
        bool, typer.Option("--console", help="Serve pages for people at /console.")
    ] = False,
    console_secret_file: Annotated[
        Path | None,
        typer.Option(
            help="Sign the console's cookies with this secret, so all processes know them."
        ),
    ] = None,
    root_path: Annotated[
        str,
        typer.Option(help="The path below which a proxy serves it, whether it cuts it off or not."),
    ] = "",
    url: Url = None,
) -> None:
    """Serve tasks, streams and approvals over HTTP, until SIGTERM.

    Each client is an open file: it raises the limit of these to the hard one, and logs it.

    Without keys and without JWT it serves this machine only, and everybody of it: it refuses
    another address than loopback.

    Try: `redis-state gateway key ann "admin:*" --file keys.json`, then
    `redis-state gateway --keys keys.json --host 0.0.0.0`.
    """
    if context.invoked_subcommand is not None:
        return
    from redis_state.gateway.requests.root_path import check_root_path  # noqa: PLC0415 - needs the extra

    auth = AuthOptions(
        keys, jwt_secret_file, jwks_url, jwt_audience, jwt_issuer, browser_secret_file
    )
    limits = LimitOptions(
        max_body_bytes, max_append_bytes, requests_per_s, burst, streams, kept_streams
    )
    app_of = or_exit(
        lambda: make_app(
            url,
            host=host,
            auth=auth,
            hook_secret_file=hook_secret_file,
            cors=cors or (),
            hosts=allowed_host or (),
            queue=queue,
            limits=limits,
            console=console or console_secret_file is not None,
            console_secret_file=console_secret_file,
        )
    )
    at = or_exit(lambda: check_root_path(root_path))
    run_server(app_of, host=host, port=port, root_path=at)


@gateway.command()
def key(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="Whose key it is.")],
    scopes: Annotated[
        list[str], typer.Argument(metavar="SCOPE...", help='Such as "read:*" or steer:session:s-1.')
    ],
    file: Annotated[
        Path | None, typer.Option(help="Add the key's digest to this file. Else it is printed.")
    ] = None,
    days: Annotated[float | None, typer.Option(min=0.001, help="Expires after so many.")] = None,
) -> None:
    """Make an API key. It is printed once; the file has its digest only."""
    from redis_state.gateway import make_api_key  # noqa: PLC0415 - needs the extra

    def make() -> tuple[str, dict[str, Any]]:
        expires_at = None if days is None else _after(days)
        made, kept = make_api_key(subject, scopes, expires_at=expires_at)
        if file is not None:
            try:
                _add(file, kept.document())
            except OSError as error:
                raise ConfigError(f"{file} cannot be written: {error.strerror}") from None
        return made, kept.document()

    made, document = or_exit(make)
    print_line(made)
    if file is None:
        print_line(json.dumps(document))


app.add_typer(gateway)


def make_app(
    url: str | None,
    *,
    host: str,
    auth: AuthOptions,
    hook_secret_file: Path | None,
    cors: Sequence[str],
    hosts: Sequence[str],
    queue: str | None,
    limits: LimitOptions,
    console: bool,
    console_secret_file: Path | None,
) -> Gateway:
    """Make the application of the command. Errors: CallerError."""
    from redis_state.gateway import (  # noqa: PLC0415 - needs the extra
        ConsoleOptions,
        HookLinks,
        Loopback,
        create_gateway,
    )
    from redis_state.gateway.auth.open import is_loopback  # noqa: PLC0415 - needs the extra

    known = auth.authenticator()
    if known is None and not is_loopback(host):
        raise CallerError(
            f"{host} is not loopback: everybody there could do everything. Give --keys, "
            "--jwt-secret-file, --jwks-url or --browser-secret-file"
        )
    return create_gateway(
        RedisStateStore.from_url(url),
        auth=known or Loopback(),
        hooks=None if hook_secret_file is None else HookLinks(hook_secret_file),
        cors=cors,
        hosts=hosts,
        queue=queue,
        limits=limits.limits(),
        console=ConsoleOptions(secret=console_secret_file) if console else False,
    )


def run_server(application: Gateway, *, host: str, port: int, root_path: str = "") -> None:
    """Serve an application by uvicorn until SIGTERM or SIGINT."""
    files = raise_open_files()
    server = make_server(application, root_path, host=host, port=port, log_level="info")
    # The server's own log, which is set up by now.
    log = logging.getLogger("uvicorn.error")
    if files is not None:
        clients = max(0, files - _OWN_FILES)
        log.info("%d files may be open: some %d clients at once", files, clients)
    server.run()


def make_server(application: Gateway, root_path: str = "", **config: Any) -> uvicorn.Server:
    """Make a server of an application, which ends its streams when it stops."""
    import uvicorn  # noqa: PLC0415 - needs the extra

    from redis_state.gateway.requests.root_path import AtRootPath  # noqa: PLC0415 - needs the extra

    class GatewayServer(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.should_exit and sig == signal.SIGINT:
                # uvicorn would keep it too, and raise both again at its end: a traceback.
                self.force_exit = True
            else:
                super().handle_exit(sig, frame)

        async def shutdown(self, sockets: Any = None) -> None:
            # It waits for open answers, and those of streams do not end by themselves.
            application.end_streams()
            await super().shutdown(sockets)

    return GatewayServer(
        uvicorn.Config(
            AtRootPath(application, root_path),
            server_header=False,
            timeout_graceful_shutdown=_GOODBYE_S,
            # The server refuses what the gateway would, before it has all of it.
            ws_max_size=application.max_message_bytes,
            **config,
        )
    )


def _after(days: float) -> datetime:
    try:
        return datetime.now(UTC) + timedelta(days=days)
    except (OverflowError, ValueError):
        raise InvalidField("--days", "is no time that a calendar has") from None


def _add(file: Path, document: dict[str, Any]) -> None:
    """Add a key to a file, in one step, for its owner alone. Commands at once do it in turn."""
    from redis_state.gateway import ApiKeys  # noqa: PLC0415 - needs the extra

    beside = file.with_name(f"{file.name}.new")
    with _claimed(beside) as opened:
        listed: list[Any] = []
        if file.exists():
            ApiKeys.from_file(file)
            listed = json.loads(file.read_text(encoding="utf-8"))
        opened.write(json.dumps([*listed, document], indent=2) + "\n")
        opened.flush()
        beside.replace(file)


@contextmanager
def _claimed(path: Path) -> Generator[TextIO]:
    """Make a file that is renamed in the block: one process at a time does so."""
    import fcntl  # noqa: PLC0415 - not on Windows

    while True:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # The process that had the lock has renamed what was opened here.
            if not _is_at(path, descriptor):
                continue
            opened.truncate()
            try:
                yield opened
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            return


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
