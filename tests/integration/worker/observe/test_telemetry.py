"""Spans: one trace from submit to the end, whatever processes and pauses lie in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("opentelemetry.sdk", reason="needs OpenTelemetry's SDK")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from redis_state import RedisStateStore
from redis_state.errors import BackendUnavailable
from redis_state.models import TaskStatus
from redis_state.stores.sessions.job_parts import JOB_FIELDS
from redis_state.testing import eventually
from redis_state.worker import Handler, TaskClient, TaskContext
from redis_state.worker.observe import tracing as telemetry
from tests.support.processes.pools import (
    SESSION,
    agent,
    client_of,
    open_token,
    pool,
    queue_of,
    serving,
)

SECRET = "s3cret"


@pytest.fixture(scope="session")
def exporter() -> InMemorySpanExporter:
    """Export to memory. A process has one provider, for ever."""
    exported = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    trace.set_tracer_provider(provider)
    return exported


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    exporter.clear()
    yield exporter
    exporter.clear()


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def stated(span: ReadableSpan, name: str) -> Any:
    assert span.attributes is not None
    return span.attributes[f"redis_state.{name}"]


async def is_over(client: TaskClient, store: RedisStateStore) -> bool:
    """Return whether no job waits, and none is claimed: a worker that stops gives its job back."""
    queue = await client.queues.get(queue_of(store.settings))
    return not (queue.waiting or queue.later or queue.running)


async def review(ctx: TaskContext) -> Any:
    fetched = await ctx.step("fetch", _fetch, ctx.input)
    decision = await ctx.approval("Publish?", {"text": fetched})
    with trace.get_tracer("host").start_as_current_span("the host's own"):
        await ctx.step("publish", lambda: f"{SECRET} {decision.value}")
    return SECRET


async def _fetch(text: str) -> str:
    return f"{text} fetched"


async def test_submit_pause_and_resume_are_one_trace(
    store: RedisStateStore, spans: InMemorySpanExporter
) -> None:
    handlers: dict[str, Handler] = {"review": review}
    async with client_of(store) as client:
        with trace.get_tracer("host").start_as_current_span("request"):
            task = await client.submit("review", SECRET, session_id=SESSION)
        async with serving(agent(store.settings, handlers, name="one")):
            token = await open_token(store, task)
            await eventually(lambda: is_over(client, store), "the first run's job is over")
        # Before there is a worker: its sweeper might queue the task first, without the link.
        await client.approve(token, SECRET)
        async with serving(agent(store.settings, handlers, name="two")):
            ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.status is TaskStatus.COMPLETE

    (request,), (submit,) = named(spans, "request"), named(spans, "submit review")
    first, second = named(spans, "run review")
    (fetch,), (publish,) = named(spans, "step fetch"), named(spans, "step publish")
    (own,), (resume,) = named(spans, "the host's own"), named(spans, "resume")
    assert (submit.kind, first.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    parents = {
        submit: request,
        first: submit,
        second: submit,
        fetch: first,
        own: second,
        publish: own,
    }
    for span, parent in parents.items():
        assert span.parent is not None, span.name
        assert (span.parent.trace_id, span.parent.span_id) == ids(parent), span.name
    # The step that was done in the first run is not done again, and has no second span.
    assert len({ids(span)[0] for span in (request, *parents)}) == 1
    # The decision is in the trace of whoever decided; the run that it caused links to it.
    assert ids(resume)[0] != ids(submit)[0]
    assert [(link.context.trace_id, link.context.span_id) for link in second.links] == [ids(resume)]
    assert [len(first.links), resume.kind] == [0, SpanKind.PRODUCER]
    assert [stated(run, "worker") for run in (first, second)] == ["one", "two"]
    assert [stated(run, "outcome") for run in (first, second)] == ["paused", "completed"]
    assert [stated(run, "attempt") for run in (first, second)] == [1, 2]
    assert [event.name for event in first.events] == ["pause"]
    everything = [json.loads(span.to_json()) for span in spans.get_finished_spans()]
    assert SECRET not in json.dumps(everything)
    assert token not in json.dumps(everything)


async def test_a_handed_over_task_stays_in_its_trace(
    store: RedisStateStore, spans: InMemorySpanExporter
) -> None:
    begun = asyncio.Event()

    async def linger(ctx: TaskContext) -> int:
        begun.set()
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return ctx.attempt

    async with client_of(store) as client:
        task = await client.submit("linger", session_id=SESSION)
        async with serving(agent(store.settings, {"linger": linger})):
            await begun.wait()
        async with serving(agent(store.settings, {"linger": linger})):
            await client.wait(SESSION, task, timeout_s=60)
    (submit,) = named(spans, "submit linger")
    runs = named(spans, "run linger")
    assert [stated(run, "outcome") for run in runs] == ["handed_over", "completed"]
    assert [run.parent and run.parent.span_id for run in runs] == [ids(submit)[1]] * 2


async def test_what_failed_is_told_by_its_kind_alone(
    store: RedisStateStore, spans: InMemorySpanExporter
) -> None:
    async def bad(ctx: TaskContext) -> None:
        await ctx.step("work", _raise)

    async with pool(store, {"bad": bad}) as client:
        task = await client.submit("bad", SECRET, session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert SECRET in str(ended.error)
        await eventually(lambda: named(spans, "run bad"), "the run's span has ended")
    for name, reported in (("step work", "ValueError"), ("run bad", "the task has failed")):
        (span,) = named(spans, name)
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, reported)
        assert SECRET not in span.to_json()


def _raise() -> None:
    raise ValueError(SECRET)


async def test_a_submission_that_fails_is_told(
    store: RedisStateStore, spans: InMemorySpanExporter, unused_tcp_port: int
) -> None:
    url = f"redis://127.0.0.1:{unused_tcp_port}/0"
    away = RedisStateStore.from_url(url, connect_timeout_s=0.1, call_timeout_s=0.1)
    async with away, TaskClient(away) as client:
        with pytest.raises(BackendUnavailable):
            await client.submit("h", session_id=SESSION)
    (span,) = named(spans, "submit h")
    assert (span.status.status_code, span.status.description) == (
        StatusCode.ERROR,
        "BackendUnavailable",
    )


class _Broken(SpanProcessor):
    def __init__(self, where: str) -> None:
        self._where = where

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self._where == "start":
            raise ZeroDivisionError(SECRET)

    def on_end(self, span: ReadableSpan) -> None:
        raise ZeroDivisionError(SECRET)


@pytest.mark.parametrize("where", ["start", "end"])
async def test_spans_that_break_are_logged_once_and_harm_no_task(
    store: RedisStateStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    async def steps(ctx: TaskContext) -> int:
        await ctx.step("work", lambda: 1)
        await ctx.pause()
        return ctx.attempt

    provider = TracerProvider()
    provider.add_span_processor(_Broken(where))
    monkeypatch.setattr(telemetry, "_reported", set[str]())
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    async with pool(store, {"steps": steps}) as client:
        task = await client.submit("steps", session_id=SESSION)
        await client.approve(await open_token(store, task))
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 2
    reported = [record.getMessage() for record in caplog.records]
    assert reported == ["telemetry is incomplete: builtins.ZeroDivisionError"]


async def test_a_carrier_that_is_damaged_begins_a_trace_anew(
    store: RedisStateStore, spans: InMemorySpanExporter
) -> None:
    async def answer(_: TaskContext) -> int:
        return 1

    carriers: list[Any] = [{"traceparent": "x"}, {"traceparent": 5}, [], "y", None]
    for number, damaged in enumerate(carriers):
        async with client_of(store) as client:
            task = await client.submit("answer", session_id=SESSION)
            key = store.base.keys.task(SESSION, task)
            job = json.dumps({"handler": "answer", "input": None, "secret": "s", "trace": damaged})
            await store.transport.sender.send("HDEL", key, *JOB_FIELDS, repeatable=True)
            await store.transport.sender.send("HSET", key, "job", job, repeatable=True)
            async with serving(agent(store.settings, {"answer": answer})):
                ended = await client.wait(SESSION, task, timeout_s=60)
            assert ended.status is TaskStatus.COMPLETE
        assert len(named(spans, "run answer")) == number + 1
        assert all(run.parent is None for run in named(spans, "run answer"))


async def test_any_text_may_be_a_name(store: RedisStateStore, spans: InMemorySpanExporter) -> None:
    async with pool(store, {}) as client:
        task = await client.submit("\ud800", session_id="\udfff")
        await client.wait("\udfff", task, timeout_s=60)
        await eventually(lambda: named(spans, "run ?"), "its span has ended")
    assert named(spans, "run ?")[0].to_json()
