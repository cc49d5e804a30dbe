"""The command ``python -m examples.openai_agents``."""

from __future__ import annotations

import typer

from examples.tickets.command import command

tickets = command(
    "agents",
    "openai-agents",
    "examples.openai_agents.agents:worker",
    """Run an agent of the OpenAI Agents SDK for each ticket, in a pool of which a worker is killed.

    The model is scripted. A worker is killed (-9) while the model of the first ticket writes. Each
    agent asks for two refunds at once, and each is decided by two people at the same time. Status 0
    only if each ticket ended as decided, and nothing was done twice but the request in flight.
    Status 2 if the OpenAI Agents SDK is not installed.
    """,
)

if __name__ == "__main__":
    typer.run(tickets)
