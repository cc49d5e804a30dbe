"""The environment in which hosts' packages call nobody: neither telemetry nor a look for updates.

The tests of the hosts set it before they import one, nox before it runs anything of a host's.
"""

from __future__ import annotations

QUIET = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_DISABLE_TRACKING": "true",
    "CREWAI_DISABLE_VERSION_CHECK": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
}
