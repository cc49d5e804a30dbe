"""The command ``python -m examples.pydantic_ai``."""

from __future__ import annotations

import typer

from examples.tickets.command import command

tickets = command(
    "pydantic_ai",
    "pydantic-ai",
    "examples.pydantic_ai.agents:worker",
    """Run an agent of pydantic-ai for each ticket, in a pool of workers of which one is killed.

    The model is scripted. A worker is killed (-9) while the model of the first ticket writes. Each
    agent asks for two refunds at once, and each is decided by two people at the same time. Status 0
    only if each ticket ended as decided, and nothing was done twice but the request in flight.
    Status 2 if pydantic-ai is not installed.
    """,
)

if __name__ == "__main__":
    typer.run(tickets)
