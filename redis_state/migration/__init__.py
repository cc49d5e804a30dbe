"""Move a namespace to another server, in steps that can be repeated, with a check."""

from __future__ import annotations

from redis_state.migration.migration import Migration
from redis_state.migration.plan import Plan
from redis_state.migration.reports import Checked, Copied, PassProgress

__all__ = ["Checked", "Copied", "Migration", "PassProgress", "Plan"]
