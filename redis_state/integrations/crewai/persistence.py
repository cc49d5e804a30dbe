"""CrewAI's `FlowPersistence`: a record for each flow. It blocks, as CrewAI wants it.

What CrewAI takes and gives is typed `Any` here: its package is not in the environment in which
types are checked.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from datetime import date
from importlib import import_module
from typing import Any, Self, cast

from pydantic import BaseModel, Field, PrivateAttr, SecretStr
from pydantic_core import to_jsonable_python

from redis_state.errors import InvalidField
from redis_state.integrations.loop_thread import LoopThread
from redis_state.primitives.record import Stored
from redis_state.serialization.fields import text
from redis_state.settings import make_settings
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms

_bases: Any = import_module("crewai.flow.persistence.base")
_feedback: Any = import_module("crewai.flow.async_feedback.types")


class RedisStateFlowPersistence(_bases.FlowPersistence):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """The newest state of flows, and the question that a flow waits with.

    The server is ``url``, else ``REDIS_STATE_URL``; ``options`` are fields of `Settings`. Neither
    is part of what CrewAI writes of a flow. Calls may come from any thread, under a running loop
    too, and share one connection. Each is one atomic step. A flow lives `snapshots_ttl` after its
    last save, encrypted with `payload_keys`. Its id may be any text.
    """

    persistence_type: str = Field(default="RedisStateFlowPersistence")
    url: SecretStr | None = Field(default=None, exclude=True, repr=False)
    options: dict[str, Any] = Field(default_factory=dict, exclude=True, repr=False)
    _store: RedisStateStore = PrivateAttr()
    _thread: LoopThread = PrivateAttr()
    _close: Any = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Make the store. No I/O. Errors: ConfigError, InvalidField."""
        super().model_post_init(context)  # pyright: ignore[reportUnknownMemberType]
        url = None if self.url is None else self.url.get_secret_value()
        self._store = RedisStateStore(make_settings(url, **self.options))
        self._thread = LoopThread("redis_state flows")
        # Not a method of this object: it would keep it for ever.
        self._close = weakref.finalize(self, self._thread.close, self._store.aclose)

    def __copy__(self) -> Self:
        """Make another one for the same server. Its store is its own, and is closed by itself."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields})

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Make another one, as `__copy__`: a definition of a flow is copied with what is in it."""
        return self.__copy__()

    def init_db(self) -> None:
        """Do nothing: there is no schema."""

    def save_state(self, flow_uuid: str, method_name: str, state_data: Any) -> None:
        """Save a flow's state, in place of the one before. Errors: InvalidField."""
        self._save(flow_uuid, {"method": method_name, "state": _plain(state_data)})

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """Return a flow's state, or None. Errors: PayloadUnreadable."""
        found = self._load(flow_uuid)
        return None if found is None else self._read(flow_uuid, found, "state")

    def save_pending_feedback(self, flow_uuid: str, context: Any, state_data: Any) -> None:
        """Save a flow's state and what it waits for, in one step."""
        state = _plain(state_data)
        asked = {"context": to_jsonable_python(context.to_dict(), fallback=str), "state": state}
        self._save(flow_uuid, {"method": context.method_name, "state": state, "pending": asked})

    def load_pending_feedback(self, flow_uuid: str) -> tuple[dict[str, Any], Any] | None:
        """Return the state and the question that a flow waits with, or None."""
        found = self._load(flow_uuid)
        asked = None if found is None else self._read(flow_uuid, found, "pending")
        if not asked:
            return None
        return asked["state"], _feedback.PendingFeedbackContext.from_dict(asked["context"])

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        """Remove what a flow waits for; its state stays."""
        records, key = self._store.base.records, self._key(flow_uuid)
        self._thread.run(lambda: records.amend(key, {"pending": b"null"}, ttl_ms=self._ttl_ms))

    def delete_flow(self, flow_uuid: str) -> bool:
        """Delete all of a flow; return whether there was any."""
        records, key = self._store.base.records, self._key(flow_uuid)
        return self._thread.run(lambda: records.delete(key))

    def close(self) -> None:
        """Wait for running calls, disconnect and end the thread. Safe to repeat."""
        self._close()

    @property
    def _ttl_ms(self) -> int:
        return ms(self._store.settings.snapshots_ttl)

    def _key(self, flow_uuid: str) -> str:
        if not text("flow_uuid", flow_uuid):
            raise InvalidField("flow_uuid", "must not be empty")
        return self._store.base.keys.crew_flow(flow_uuid)

    def _save(self, flow_uuid: str, values: Mapping[str, Any]) -> None:
        base, key = self._store.base, self._key(flow_uuid)
        fields = {name: base.payloads.write(value, field=name) for name, value in values.items()}
        self._thread.run(lambda: base.records.save(key, fields, ttl_ms=self._ttl_ms))

    def _load(self, flow_uuid: str) -> Stored | None:
        key, records = self._key(flow_uuid), self._store.base.records
        return self._thread.run(lambda: records.load(key))

    def _read(self, flow_uuid: str, found: Stored, field: str) -> Any:
        payloads, of = self._store.base.payloads, f"flow {flow_uuid!r}"
        stored = payloads.open(found.fields.get(field, b"null"), of=of, field=field)
        return payloads.decode(stored)


def _plain(state: Any) -> dict[str, Any]:
    """Write a state as JSON holds it; what it cannot hold as its text."""
    if not isinstance(state, dict | BaseModel):
        raise InvalidField("state_data", f"a dict or a model is needed, not {type(state).__name__}")
    try:
        plain: dict[str, Any] = to_jsonable_python(_with_times(state), fallback=str)
    except RecursionError:
        raise InvalidField("state_data", "must not contain itself") from None
    except ValueError:
        raise InvalidField("state_data", "bytes must be UTF-8") from None
    return plain


def _with_times(value: Any) -> Any:
    """Write times as CrewAI's own store does, with their offset. Those of a model end in ``Z``."""
    match value:
        case date():
            return value.isoformat()
        case dict():
            items: Any = cast("Any", value)
            return {key: _with_times(each) for key, each in items.items()}
        case list() | tuple() | set() | frozenset():
            return [_with_times(each) for each in cast("Iterable[Any]", value)]
        case _:
            return value
