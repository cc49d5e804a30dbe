"""Spans of OpenTelemetry, if opentelemetry-api is installed: one trace from submit to the end.

`TaskClient.submit` makes a producer span, whose context is kept with the task. Each run of the
task, in whatever process, makes a consumer span with it as parent; the steps that a run really does
are its children. A decision that has a paused task run again makes a producer span where it is
made, which the next run links to.

Without the package nothing is imported and nothing is made. Names and ids become attributes, never
what a task carries. What goes wrong in here is logged once and dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

if TYPE_CHECKING:
    from opentelemetry.trace import Span

log: logging.Logger = logging.getLogger(__name__)

Carrier = Mapping[str, str]
Kind = Literal["producer", "consumer", "internal"]
Attribute = str | int | bool

_TRACER = "redis_state"
_CARRIED = ("traceparent", "tracestate")
_reported: set[str] = set()


class Traced(AbstractContextManager["Traced"]):
    """A span for the length of a block, current within it; or nothing at all.

    An error that passes through a step or a submission is its failure. A run says itself how it
    ended: most of what passes through it (a pause, a cancel) is no failure.
    """

    def __init__(
        self,
        name: str,
        kind: Kind,
        attributes: Mapping[str, Attribute],
        *,
        parent: Carrier | None = None,
        link: Carrier | None = None,
    ) -> None:
        self._name = name
        self._kind: Kind = kind
        self._attributes = attributes
        self._parent = parent
        self._link = link
        self._span: Span | None = None
        self._open: ExitStack | None = None

    @property
    def carrier(self) -> dict[str, str]:
        """The span's context, to be carried to another process. Empty without a trace."""
        found: dict[str, str] = {}
        if self._span is None:
            return found
        try:
            _propagator().inject(found)
        except Exception as error:  # noqa: BLE001 - no failure of tracing may stop a task
            dropped(error)
        return {name: found[name] for name in _CARRIED if name in found}

    def __enter__(self) -> Self:
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - as above
            dropped(error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and self._kind != "consumer":
            self.fail(type(error).__name__)
        try:
            if self._open is not None:
                self._open.close()
        except Exception as failure:  # noqa: BLE001 - as above
            dropped(failure)

    def set(self, **attributes: Attribute) -> None:
        """Set attributes."""
        if self._span is not None:
            try:
                self._span.set_attributes(_named(attributes))
            except Exception as error:  # noqa: BLE001 - as above
                dropped(error)

    def fail(self, reason: str) -> None:
        """Mark the span as failed. ``reason`` names a kind, not a payload."""
        if self._span is not None:
            try:
                codes = import_module("opentelemetry.trace")
                self._span.set_status(codes.Status(codes.StatusCode.ERROR, reason))
            except Exception as error:  # noqa: BLE001 - as above
                dropped(error)

    def _begin(self) -> None:
        api = _api()
        if not is_active():
            return
        kinds = {
            "producer": api.SpanKind.PRODUCER,
            "consumer": api.SpanKind.CONSUMER,
            "internal": api.SpanKind.INTERNAL,
        }
        links = [api.Link(context) for context in [_context(api, self._link)] if context]
        # A task that was submitted without a trace begins one of its own with each run.
        above = (
            None if self._parent is None else _propagator().extract(dict(self._parent), _empty())
        )
        self._open = ExitStack()
        self._span = self._open.enter_context(
            api.get_tracer(_TRACER).start_as_current_span(
                str(_text(self._name)),
                context=above,
                kind=kinds[self._kind],
                attributes=_named(self._attributes),
                links=links,
                record_exception=False,
                set_status_on_exception=False,
            )
        )


class _Untraced(Traced):
    """No span, for all blocks at once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


_UNTRACED = _Untraced("", "internal", {})


def is_active() -> bool:
    """Return whether a tracer is set: without one nobody would receive a span."""
    api = _api()
    return api is not None and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


def may_trace() -> bool:
    """Return whether a tracer is set. Never raises."""
    try:
        return is_active()
    except Exception as error:  # noqa: BLE001 - no failure of tracing may stop a task
        dropped(error)
        return False


def submitting(handler: str, session_id: str, task_id: str, queue: str) -> Traced:
    """Trace the submission of a task."""
    if not may_trace():
        return _UNTRACED
    return Traced(
        f"submit {handler}",
        "producer",
        {"handler": handler, "session_id": session_id, "task_id": task_id, "queue": queue},
    )


def deciding() -> Traced:
    """Trace the decision of a pause."""
    return Traced("resume", "producer", {})


def running(
    handler: str,
    *,
    parent: Carrier | None,
    queued_by: Carrier | None,
    **attributes: Attribute,
) -> Traced:
    """Trace one run of a task."""
    if not may_trace():
        return _UNTRACED
    again = queued_by if queued_by and queued_by != parent else None
    about = {"handler": handler, **attributes}
    return Traced(f"run {handler}", "consumer", about, parent=parent or {}, link=again)


def stepping(name: str) -> Traced:
    """Trace a step that is really done."""
    return Traced(f"step {name}", "internal", {"step": name})


def event(name: str, **attributes: Attribute) -> None:
    """Add an event to the current span."""
    try:
        api = _api()
        if api is not None:
            api.get_current_span().add_event(name, _named(attributes))
    except Exception as error:  # noqa: BLE001 - no failure of tracing may stop a task
        dropped(error)


def carried(found: Any) -> dict[str, str]:
    """Read a carrier that has been stored. What is none reads as empty."""
    if not isinstance(found, dict):
        return {}
    texts = cast("dict[object, object]", found)
    named = [(name, texts.get(name)) for name in _CARRIED]
    return {name: text for name, text in named if isinstance(text, str)}


def dropped(error: Exception) -> None:
    """Log something that went wrong with spans or metrics, the first time."""
    kind = f"{type(error).__module__}.{type(error).__name__}"
    if kind not in _reported:
        _reported.add(kind)
        log.warning("telemetry is incomplete: %s", kind)


@cache
def _api() -> Any:
    try:
        return import_module("opentelemetry.trace")
    except ImportError:
        return None


@cache
def _propagator() -> Any:
    # W3C's always, whatever the host uses elsewhere: what is stored must be read anywhere.
    kind = import_module("opentelemetry.trace.propagation.tracecontext")
    return kind.TraceContextTextMapPropagator()


def _empty() -> Any:
    return import_module("opentelemetry.context").Context()


def _context(api: Any, carrier: Carrier | None) -> Any:
    if not carrier:
        return None
    span = api.get_current_span(_propagator().extract(dict(carrier), _empty()))
    return span.get_span_context() if span.get_span_context().is_valid else None


def _named(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    return {f"redis_state.{name}": _text(value) for name, value in attributes.items()}


def _text(value: Attribute) -> Attribute:
    # An id may be any text; exporters want what UTF-8 can hold.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
