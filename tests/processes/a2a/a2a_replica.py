"""One replica of the A2A example server."""

from __future__ import annotations

from examples.a2a_server.server import main

main()
