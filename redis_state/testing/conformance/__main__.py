"""Run the checks of a host: ``python -m redis_state.testing.conformance my_host:HOST``."""

from __future__ import annotations

import argparse
import asyncio
import sys

from redis_state.errors import RedisStateError
from redis_state.testing.conformance.running import CHECKS, CheckResult, conformance


async def main(arguments: list[str]) -> int:
    """Print a line for each check, then the sums; return 0, or 1 if the host does not conform."""
    parser = argparse.ArgumentParser(prog="python -m redis_state.testing.conformance")
    parser.add_argument("host", help="module:NAME or path/to/file.py:NAME of a HostUnderTest")
    parser.add_argument("--url", help="the server; without one, one is started")
    parser.add_argument("--check", action="append", choices=CHECKS, help="of all, only these")
    parser.add_argument("--at-once", type=int, default=4, help="checks that run together")
    given = parser.parse_args(arguments)
    results: list[CheckResult] = []
    try:
        async for result in conformance(
            given.host, url=given.url, checks=given.check or CHECKS, at_once=given.at_once
        ):
            sys.stdout.write(f"{result}\n")
            results.append(result)
    except RedisStateError as error:
        parser.error(str(error))
    passed = sum(result.outcome == "passed" for result in results)
    processes, kills = (
        sum(result.processes for result in results),
        sum(result.kills for result in results),
    )
    sys.stdout.write(
        f"{passed} of {len(results)} passed; {processes} processes, of which {kills} were killed\n"
    )
    return 1 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
