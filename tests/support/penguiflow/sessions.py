"""Stores of PenguiFlow, as the processes of a session have them."""

from __future__ import annotations

from typing import Any

from redis_state import Settings


def make_store(settings: Settings, url: str | None = None, **options: Any) -> Any:
    """Make a store of the test's namespace, at another address if one is given."""
    from redis_state.integrations.penguiflow import create_store  # noqa: PLC0415 - its package

    return create_store(
        url=url or settings.url.get_secret_value(), namespace=settings.namespace, **options
    )
