"""Run a host's own tests of its store with ours in the store's place.

    python -m tools.upstream.run crewai

It runs in the host's environment: `make test-upstream` makes that. The server is an embedded one,
or that of ``REDIS_STATE_TEST_URL``. It prints how many of the tests that apply have passed, and why
others do not apply: with ``SOURCES``, also those that fail with the host's own store. A failed one
ends it with status 1. So do tests that cannot be had, with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from redis_state.embedded.server import start_embedded
from tools.upstream.host import Host
from tools.upstream.sources import NoSourcesError, files_of, sources_of

ROOT = Path(__file__).parents[2]
_SETTINGS = """[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
"""


def main(name: str) -> int:
    """Run the tests of a host; return the status to exit with."""
    host: Host = import_module(f"tools.upstream.{name}").HOST
    title = f"{host.package} {version(host.package)}"
    try:
        sources = sources_of(host)
    except NoSourcesError as error:
        print(f"{title}: nothing was tested, its tests cannot be had: {error}")
        return 1
    with _server() as url, TemporaryDirectory() as folder:
        found = _test(name, host, sources, url=url, folder=Path(folder))
        if found is None:
            print(f"{title}: its tests did not begin")
            return 1
        plain = None
        if os.environ.get("SOURCES"):
            # Of another version: a test that fails with the host's own does not apply.
            plain = _test(name, host, sources, url="", folder=Path(folder))
        return _report(title, found, plain)


@contextmanager
def _server() -> Generator[str]:
    """Give the URL of a server."""
    if url := os.environ.get("REDIS_STATE_TEST_URL"):
        yield url
        return
    server = start_embedded(None)
    try:
        yield server.url
    finally:
        server.stop()


def _test(name: str, host: Host, sources: Path, *, url: str, folder: Path) -> dict[str, Any] | None:
    """Run pytest apart from the settings of this checkout and of the host's; return its report.

    Without a URL the host's own store stays.
    """
    settings, report = folder / "pytest.ini", folder / f"report {bool(url)}.json"
    settings.write_text(_SETTINGS, encoding="utf-8")
    command = (
        *(sys.executable, "-m", "pytest", "-q", "-p", "tools.upstream.plugin", "-p", "no:randomly"),
        *("-p", "no:cacheprovider", "-c", str(settings), "--timeout", "360"),
        *("--rootdir", str(sources), "-W", "ignore", "--continue-on-collection-errors"),
        *("--tb", "short"),
    )
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *(sources / each for each in host.paths)))),
        "UPSTREAM_HOST": name,
        "UPSTREAM_URL": url,
        "UPSTREAM_REPORT": str(report),
    }
    # The outcome is in the report.
    subprocess.run((*command, *files_of(host, sources)), cwd=folder, env=environment, check=False)
    return json.loads(report.read_text(encoding="utf-8")) if report.exists() else None


def _report(title: str, report: dict[str, Any], plain: dict[str, Any] | None) -> int:
    outcomes: dict[str, str] = report["outcomes"]
    if plain is not None:
        passing = {test for test, outcome in plain["outcomes"].items() if outcome == "passed"}
        print(f"\n{title}: {len(passing)} of {len(outcomes)} tests pass without ours")
        outcomes = {test: outcome for test, outcome in outcomes.items() if test in passing}
    passed = sum(outcome == "passed" for outcome in outcomes.values())
    print(f"\n{title}: {passed} of {len(outcomes)} that apply passed")
    for test, outcome in outcomes.items():
        if outcome != "passed":
            print(f"  {outcome}: {test}")
    for reason, count in report["left_out"].items():
        print(f"  left out, {count}: {reason}")
    return 0 if outcomes and passed == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
