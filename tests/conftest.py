"""One real server for each test process, one namespace for each test, no key left behind."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.rights import Role
from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from redis_state.transport.transport import Transport
from tests.support import costs, deaths
from tests.support.hosts import KINDS, Host, open_host
from tests.support.logs import is_of_the_test
from tests.support.processes import children, forkserver, nursery
from tests.support.servers.choice import Admin, TestServer, describe, start_server
from tests.support.servers.faults import run_server, short_directory
from tests.support.servers.ports import PROCESSES, free_port

# `make fuzz` looks for what nobody has thought of. All other runs are the same for everybody: what
# decides a test is in the checkout, not in the examples or the order that one run happens to draw.
FUZZ = bool(os.environ.get("REDIS_STATE_FUZZ"))
# `make test-full` runs the sizes that are promised; all other runs reduce them.
FULL = bool(os.environ.get("REDIS_STATE_FULL"))
# Of the order of the tests, and of `random` in each of them.
SEED = 20
# From this moment on, in seconds since 1970, a run begins no costly test any more.
COSTLY_UNTIL = "REDIS_STATE_COSTLY_UNTIL"

EXAMPLES = hypothesis_settings(
    max_examples=int(os.environ.get("REDIS_STATE_EXAMPLES", "25")),
    # A shared, busy machine makes single examples slow: that is no finding.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    print_blob=True,
)
hypothesis_settings.register_profile("suite", EXAMPLES, derandomize=True, database=None)
hypothesis_settings.register_profile("fuzz", EXAMPLES)
hypothesis_settings.load_profile("fuzz" if FUZZ else "suite")

# Processes of the tests find their modules compiled, and are interrupted by SIGINT, also where the
# suite runs in the background of a shell, which ignores that signal.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HAS_FAILED = pytest.StashKey[bool]()
TESTS = Path(__file__).resolve().parent
# The folders of tests that bear the mark `server`.
SERVER = {"lua", "transport", "servers", "primitives", "stores", "contract"}
# The folders of tests that start sets of servers, and wait for what becomes of them.
LONG = {"servers", "chaos"}
_COSTLY = costs.listed(costs.FILE.read_text(encoding="utf-8"))
# How many of the others stand behind each of these, and of those that are marked `slow`.
BETWEEN = 6
SHARED = Path(__file__).resolve().parents[2] / "shared"


class _Silent:
    """What pytest asks for how wide and how colourful a failure is shown."""

    def __init__(self, reporter: Any) -> None:
        self._tw = reporter._tw


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give pytest-randomly and xdist our defaults, where they are there and got no others."""
    # What is collected stays to the end: the collector of garbage need not look through it.
    gc.disable()
    if not FUZZ and config.getoption("randomly_seed", None) == "default":
        config.option.randomly_seed = SEED
    if config.getoption("maxschedchunk", 0) is None:
        # One for each that has ended. With more, a process of xdist that meets quick tests piles up
        # what comes next, and has the long ones left at the end.
        config.option.maxschedchunk = 1
    if config.getoption("numprocesses", None) and not forkserver.is_shared():
        # One for all processes of xdist, which do not have this option themselves. A run of tests
        # inside a test has that of the run around it.
        config.add_cleanup(forkserver.launch())


@pytest.hookimpl(specname="pytest_configure", trylast=True)
def pytest_let_one_process_print(config: pytest.Config) -> None:
    """Take pytest's reporter from a process of xdist: nobody reads what it would print."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if hasattr(config, "workerinput") and reporter is not None:
        config.pluginmanager.unregister(reporter)
        config.pluginmanager.register(_Silent(reporter), "terminalreporter")


def pytest_collection(session: pytest.Session) -> bool | None:
    """Collect nothing again that the process has collected from which this one was forked."""
    return nursery.take_over(session) or None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test by its folder."""
    folders = _folders(item.path)
    if "unit" not in folders and SERVER & folders:
        item.add_marker(pytest.mark.server)


@pytest.hookimpl(specname="pytest_collection_modifyitems", tryfirst=True)
def pytest_mark_what_costs_much(items: list[pytest.Item]) -> None:
    """Mark what `make test` leaves to `make test-exhaustive`."""
    for item in costs.left_out(items, _COSTLY):
        item.add_marker(pytest.mark.exhaustive)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the full sizes to `make test-full`, and spread the tests that take seconds."""
    for item in items:
        if item.get_closest_marker("full") and not FULL:
            item.add_marker(pytest.mark.skip(reason="make test-full"))
    others: list[pytest.Item] = []
    long: list[pytest.Item] = []
    for item in items:
        is_long = LONG & _folders(item.path) or item.get_closest_marker("slow") is not None
        (long if is_long else others).append(item)
    # While one process waits, the next ones compute; and none has the long ones left at the end.
    items[:] = chain.from_iterable(
        [*long[place : place + 1], *others[place * BETWEEN : (place + 1) * BETWEEN]]
        for place in range(max(len(long), -(-len(others) // BETWEEN)))
    )


@cache
def _folders(path: Path) -> frozenset[str]:
    """Name the folders of a test file below that of all tests."""
    return frozenset(path.relative_to(TESTS).parts[:-1] if path.is_relative_to(TESTS) else ())


def pytest_collection_finish() -> None:
    """Collect garbage again, without what every test needs, and not so often as by default."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 50)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run ten processes on two cores: tests wait most of their time, and a fork costs little."""
    return min(5 * (os.cpu_count() or 1), PROCESSES)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Collect the tests once for all processes, unless what is imported is measured."""
    if config.getoption("numprocesses", None) and not config.getoption("cov_source", None):
        nursery.raise_processes(config, specs)


def pytest_report_header() -> str:
    """Name the server that the tests run on."""
    return f"redis_state server: {describe()}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show how many deaths each sweep over points of death had."""
    reports = [each for of in ("passed", "failed") for each in terminalreporter.stats.get(of, ())]
    lines = list(deaths.counted(reports))
    if lines:
        terminalreporter.section("deaths at points of death, compared after each")
    for line in lines:
        terminalreporter.line(line)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out a costly test for which no time is left."""
    until = float(os.environ.get(COSTLY_UNTIL, "inf"))
    if time.time() > until and item.get_closest_marker("exhaustive"):
        pytest.skip("no time is left for it: make test-exhaustive")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note which tests have failed."""
    report = yield
    item.stash[HAS_FAILED] = item.stash.get(HAS_FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True)
def every_process_ends_with_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Kill what a test leaves that has failed or timed out; one that passes may leave nothing."""
    yield
    left = children.end_all()
    request.node.user_properties += children.counted.items()
    children.counted.clear()
    assert not left or request.node.stash[HAS_FAILED], f"left running: {left}"


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Keep what is collected of earlier tests out of a test's records."""
    caplog.handler.addFilter(is_of_the_test)
    yield caplog
    caplog.handler.removeFilter(is_of_the_test)


@pytest.fixture(scope="session")
def suite_server() -> Iterator[TestServer]:
    """Start this test process's server."""
    started = start_server()
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def unused_tcp_port_factory() -> Callable[[], int]:
    """Give ports that no outgoing connection takes, which those of pytest-asyncio may be."""
    return free_port


@pytest.fixture
def unused_tcp_port() -> int:
    """Give one port of those. That of pytest-asyncio does not ask the factory."""
    return free_port()


@pytest.fixture(scope="session")
def admin(suite_server: TestServer) -> Iterator[Admin]:
    """Connect to this test process's server, beside what is tested."""
    with Admin(suite_server) as opened:
        yield opened


@pytest.fixture(scope="session")
def defaults(suite_server: TestServer) -> Settings:
    """Read the settings from the environment once: that takes longer than many a test."""
    return Settings(url=SecretStr(suite_server.url))


@pytest.fixture
def settings(
    admin: Admin, defaults: Settings, request: pytest.FixtureRequest
) -> Iterator[Settings]:
    """Give a namespace of the test's own, and fail if it leaves a key that stays for ever.

    On a server with users, the test fails too if it was refused anything.
    """
    own = defaults.model_copy(update={"namespace": f"t{uuid.uuid4().hex[:10]}"})
    marked = request.node.get_closest_marker("role")
    if admin.has_users:
        if marked is not None and marked.args[0] == "any":
            pytest.skip(f"not as a user with few rights: {marked.kwargs['why']}")
        admin.let_in(own, Role.WORKER if marked is None else Role(marked.args[0]))
    yield own
    leaked = admin.keys_without_lifetime(own.namespace)
    refused = admin.refused()
    admin.clear()
    assert not leaked, f"keys without a lifetime: {leaked}"
    assert not refused, f"not permitted: {refused}"


@pytest.fixture
def beside(admin: Admin, settings: Settings) -> Callable[[str], Settings]:
    """Give settings of further namespaces of the test's own."""

    def make(name: str) -> Settings:
        other = settings.model_copy(update={"namespace": f"{settings.namespace}-{name}"})
        admin.let_in(other, also=True)
        return other

    return make


@pytest.fixture
async def store(settings: Settings) -> AsyncIterator[RedisStateStore]:
    """Give a store on the test's namespace."""
    async with RedisStateStore(settings) as opened:
        yield opened


@pytest.fixture
def own_url() -> Iterator[str]:
    """Start a server of the test's own."""
    with short_directory() as directory, run_server(directory) as url:
        yield url


@pytest.fixture(params=KINDS)
async def host(settings: Settings, request: pytest.FixtureRequest) -> AsyncIterator[Host]:
    """Give the store with each set of classes: its own, and those of PenguiFlow."""
    async with open_host(request.param, settings) as opened:
        yield opened


@pytest.fixture
async def scripts(settings: Settings) -> AsyncIterator[Scripts]:
    """Give the scripts on a transport of the test's own."""
    transport = Transport(settings)
    yield Scripts(transport)
    await transport.aclose()


@pytest.fixture
def keys(settings: Settings) -> Keys:
    """Give the keys of the test's namespace."""
    return Keys(settings.namespace)


@pytest.fixture
def shared() -> Path:
    """Give the folder of contracts and reference texts, which users do not have."""
    if not SHARED.is_dir():
        pytest.skip("the folder of reference texts is not beside the project")
    return SHARED
