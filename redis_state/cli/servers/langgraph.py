"""The commands that bring threads of LangGraph from other savers."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import ExitCode, run
from redis_state.cli.output import harmless, print_json, print_line
from redis_state.cli.servers.langgraph_source import opened_saver
from redis_state.errors import (
    CallerError,
    ConfigError,
    NoConnection,
    RedisStateError,
    ThreadClaimed,
)

if TYPE_CHECKING:
    from langgraph.checkpoint.base import CheckpointTuple

    from redis_state.integrations.langgraph import RedisSaver
    from redis_state.integrations.langgraph.importing.importer import ThreadImport
    from redis_state.integrations.langgraph.importing.sources import ThreadSource

langgraph: typer.Typer = typer.Typer(
    name="langgraph",
    help="Bring threads of LangGraph from another saver into this store.\n\n"
    "1. `import --dry-run` reads the source, and counts what would be written.\n\n"
    "2. `import`, while the graphs run. Repeat it at will: it writes what is missing.\n\n"
    "3. Stop the graphs. `import` again, then `check`. Start them with `RedisSaver`.\n\n"
    "The source is --from. For langgraph-checkpoint-postgres it is postgresql://…, for -sqlite "
    "sqlite:///path, for -redis redis://…, for -aws valkey://… or dynamodb://table?region=…. "
    "For any other saver it is MODULE:FACTORY, a function without parameters that returns it. "
    "Its package must be installed, and the modules of the graphs' own types must be importable.",
    no_args_is_help=True,
)
app.add_typer(langgraph)

From = Annotated[
    str,
    typer.Option(
        "--from",
        envvar="REDIS_STATE_LANGGRAPH_FROM",
        metavar="URL|MODULE:FACTORY",
        help="The source. A password is better in the environment.",
    ),
]
Threads = Annotated[
    list[str] | None, typer.Option("--thread", help="Only this thread. May be repeated.")
]
ThreadsFile = Annotated[
    Path | None, typer.Option(help="Only the threads in this file, one id a line.")
]
_SHOWN_EVERY_S = 1.0
_NAMED = 20
# A claim of an import that was killed has expired by then.
_WAIT_MS = 6_000
_MODULUS = 2**128


@langgraph.command("import")
def import_(
    source: From,
    url: Url = None,
    thread: Threads = None,
    threads_file: ThreadsFile = None,
    dry_run: Annotated[bool, typer.Option(help="Write nothing; count what would be.")] = False,
    as_json: AsJson = False,
) -> None:
    """Copy threads with checkpoints, parents, pending writes and namespaces, and compare them.

    Safe to repeat, and to continue after a crash: what is there is compared and left alone. Each
    thread is claimed while it is written. One that another process has claimed is left out. An
    imported thread has its whole lifetime, `graph_threads_ttl`, from now.

    Status 0 if the target has all that the source has. 1 if something differs or was left out, or
    if a named thread is not there. 2 for a wrong --from or file, 5 if the target cannot be reached.
    A dry run is 0 unless something differs.
    """
    options = _ImportOptions(source, url, thread or [], threads_file, write=not dry_run)
    _finish(options, as_json=as_json, missing_is_fine=dry_run)


@langgraph.command()
def check(
    source: From,
    url: Url = None,
    thread: Threads = None,
    threads_file: ThreadsFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare both sides by counts and digests. Writes nothing.

    Checkpoints that only the target has do not count: its threads may have continued.

    Status 0 if the target has all that the source has, 1 if not, 5 if it cannot be reached.
    """
    options = _ImportOptions(source, url, thread or [], threads_file, write=False)
    _finish(options, as_json=as_json, missing_is_fine=False)


@dataclass(frozen=True, slots=True)
class _ImportOptions:
    source: str = field(repr=False)
    url: str | None = field(repr=False)
    threads: list[str]
    file: Path | None
    write: bool

    @property
    def named(self) -> bool:
        """Whether threads are named, and not all are meant."""
        return bool(self.threads or self.file)


@dataclass(slots=True)
class _Total:
    """The sums over all threads, and those that need a person."""

    threads: int = 0
    checkpoints: int = 0
    writes: int = 0
    added: int = 0
    added_writes: int = 0
    missing: int = 0
    different: int = 0
    extra: int = 0
    source_digest: int = 0
    target_digest: int = 0
    unequal: list[str] = field(default_factory=list[str])
    claimed: list[str] = field(default_factory=list[str])
    failed: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, done: ThreadImport) -> None:
        self.threads += 1
        for name in ("checkpoints", "writes", "added", "added_writes"):
            setattr(self, name, getattr(self, name) + getattr(done, name))
        for name in ("missing", "different", "extra"):
            setattr(self, name, getattr(self, name) + getattr(done, name))
        for name in ("source_digest", "target_digest"):
            setattr(self, name, (getattr(self, name) + getattr(done, name)) % _MODULUS)
        if not done.equal:
            self.unequal.append(done.thread_id)

    @property
    def equal(self) -> bool:
        return not (self.unequal or self.claimed or self.failed)

    def document(self) -> dict[str, Any]:
        names = ("threads", "checkpoints", "writes", "added", "added_writes")
        numbers = {name: getattr(self, name) for name in (*names, "missing", "different", "extra")}
        return numbers | {
            "source_digest": f"{self.source_digest:032x}",
            "target_digest": f"{self.target_digest:032x}",
            "unequal": self.unequal,
            "claimed": self.claimed,
            "failed": self.failed,
            "equal": self.equal,
        }


def _finish(options: _ImportOptions, *, as_json: bool, missing_is_fine: bool) -> None:
    total = run(_import(options))
    if as_json:
        print_json(total.document())
    else:
        _print(total, write=options.write)
    waits = missing_is_fine and not total.different and not total.failed and not total.claimed
    if not total.equal and not waits:
        raise typer.Exit(ExitCode.FAILED)


async def _import(options: _ImportOptions) -> _Total:
    try:
        from redis_state.integrations.langgraph import (  # noqa: PLC0415 - needs the extra
            RedisSaver,
            source_of,
        )
    except ImportError as error:
        raise ConfigError(str(error)) from None
    total, progress = _Total(), _Progress()
    async with opened_saver(options.source) as other, RedisSaver.from_url(options.url) as saver:
        await saver.store.health()
        source = _Counted(source_of(other), progress)
        try:
            await _all(saver, source, options, total, progress)
        finally:
            progress.end()
    return total


async def _all(
    saver: RedisSaver, source: _Counted, options: _ImportOptions, total: _Total, progress: _Progress
) -> None:
    claimed: dict[str, int] = {}
    async for thread_id in _chosen(source, options):
        left_ms = await _one(saver, source, thread_id, options, total)
        if left_ms:
            claimed[thread_id] = left_ms
        progress.threads = total.threads
        progress.show()
    if claimed:
        # One that is in use is renewed meanwhile.
        await asyncio.sleep(min(max(claimed.values()), _WAIT_MS) / 1000)
    for thread_id in claimed:
        if await _one(saver, source, thread_id, options, total):
            total.claimed.append(thread_id)


async def _one(
    saver: RedisSaver, source: _Counted, thread_id: str, options: _ImportOptions, total: _Total
) -> int:
    """Import a thread; return for how long it is claimed by another process."""
    try:
        done = await saver.aimport_thread(source, thread_id, check=not options.write)
        total.add(done)
        if not done.checkpoints and options.named:
            total.failed[thread_id] = "the source has no such thread"
    except ThreadClaimed as error:
        return max(error.left_ms, 1)
    except NoConnection:
        raise
    except RedisStateError as error:
        total.failed[thread_id] = str(error)
    except Exception as error:  # noqa: BLE001 - of the source's package
        # Without its text: it may have values.
        total.failed[thread_id] = f"the source raised {type(error).__name__}"
    return 0


async def _chosen(source: ThreadSource, options: _ImportOptions) -> AsyncIterator[str]:
    if options.named:
        for thread_id in options.threads:
            yield thread_id
        for thread_id in _lines_of(options.file) if options.file else ():
            yield thread_id
        return
    try:
        async for thread_id in source.threads():
            yield thread_id
    except (RedisStateError, GeneratorExit, asyncio.CancelledError):
        raise
    except Exception as error:  # noqa: BLE001 - of the source's package
        name = type(error).__name__
        raise CallerError(f"--from cannot list its threads ({name}): name them") from None


def _lines_of(file: Path) -> list[str]:
    """Read the ids in a file, without empty lines. Errors: CallerError."""
    try:
        return [line for line in file.read_text(encoding="utf-8").split("\n") if line]
    except OSError as error:
        raise CallerError(f"--threads-file: {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CallerError(f"--threads-file: {file} is not UTF-8") from None


class _Progress:
    """How far an import is, on standard error: a line that is written again, or a line a while."""

    def __init__(self) -> None:
        self.threads: int = 0
        self.checkpoints: int = 0
        self._last = time.monotonic()
        self._rewritten = sys.stderr.isatty()

    def show(self) -> None:
        if time.monotonic() - self._last < _SHOWN_EVERY_S:
            return
        self._last = time.monotonic()
        text = f"{self.threads:,} threads, {self.checkpoints:,} checkpoints read"
        if self._rewritten:
            print(f"\r{text}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._rewritten:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class _Counted:
    """A source whose checkpoints are counted."""

    def __init__(self, source: ThreadSource, progress: _Progress) -> None:
        self._source = source
        self._progress = progress

    def threads(self) -> AsyncGenerator[str]:
        return self._source.threads()

    async def checkpoints(self, thread_id: str) -> AsyncGenerator[CheckpointTuple]:
        async for each in self._source.checkpoints(thread_id):
            yield each
            self._progress.checkpoints += 1
            self._progress.show()


def _print(total: _Total, *, write: bool) -> None:
    print_line(
        f"{total.threads:,} threads with {total.checkpoints:,} checkpoints "
        f"and {total.writes:,} pending writes"
    )
    if write:
        print_line(f"{total.added:,} checkpoints and {total.added_writes:,} writes were added")
    for count, what in (
        (total.missing, "are at the source only"),
        (total.different, "differ at the target, and were left alone"),
        (total.extra, "are at the target only"),
    ):
        if count:
            print_line(f"{count:,} checkpoints {what}")
    print_line(f"digest of the source {total.source_digest:032x}")
    print_line(f"digest of the target {total.target_digest:032x}")
    _print_named(total.claimed, "are claimed by another process, and were left out")
    _print_named(total.unequal, "are not equal")
    for thread_id, problem in list(total.failed.items())[:_NAMED]:
        print_line(f"  {harmless(thread_id)}: {harmless(problem)}")
    _print_named(list(total.failed), "could not be imported")


def _print_named(threads: list[str], what: str) -> None:
    if threads:
        more = f", and {len(threads) - _NAMED:,} more" * (len(threads) > _NAMED)
        named = ", ".join(map(harmless, threads[:_NAMED]))
        print_line(f"{len(threads):,} threads {what}: {named}{more}")
