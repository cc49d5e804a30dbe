"""Our memory in the hands of the published planner, and its documents in those of its memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator
from inspect import iscoroutinefunction, isfunction
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state import InvalidField, RedisStateStore, Settings
from redis_state.memory import MemoryIsolation, MemoryKey, PlannerMemory, SessionMemory
from redis_state.testing import eventually
from tests.support.memory import KEY, Summarizer, full_turn, memory_of, names_in, stored, turn
from tests.support.servers.faults import run_processes

REASON = "needs the published package"
theirs = pytest.importorskip("penguiflow.planner.memory", reason=REASON)
their_rules = pytest.importorskip("penguiflow.planner.memory_integration", reason=REASON)
their_state = pytest.importorskip("penguiflow.state", reason=REASON)
their_sessions = pytest.importorskip("penguiflow.sessions", reason=REASON)
penguiflow_memory = pytest.importorskip("redis_state.integrations.penguiflow.memory")
planning = pytest.importorskip("tests.support.penguiflow.planner")

CONTEXT = {"tenant_id": "acme", "user_id": "ana", "session_id": "s-1"}
PROTOCOLS = [
    theirs.ShortTermMemory,
    theirs.ShortTermMemoryPersistence,
    theirs.ShortTermMemorySerializable,
    theirs.ShortTermMemoryArtifacts,
]


def their_config(**more: Any) -> Any:
    budget = theirs.MemoryBudget(full_zone_turns=2, summary_max_tokens=10**6, total_max_tokens=0)
    fields: dict[str, Any] = {"strategy": "rolling_summary", "budget": budget, **more}
    return theirs.ShortTermMemoryConfig(**fields)


def create(summarizer: Any = None, **more: Any) -> PlannerMemory:
    made: PlannerMemory = penguiflow_memory.create_memory(
        their_config(**more), summarizer=summarizer or Summarizer()
    )
    return made


@pytest.fixture
async def host(settings: Settings) -> AsyncIterator[Any]:
    """Give PenguiFlow's store."""
    module = pytest.importorskip("redis_state.integrations.penguiflow")
    made = module.create_store(url=settings.url.get_secret_value(), namespace=settings.namespace)
    yield made
    await made.aclose()


@pytest.mark.parametrize("memory", [PlannerMemory, SessionMemory])
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.__name__)
def test_a_memory_has_what_each_protocol_asks_for(memory: Any, protocol: Any) -> None:
    members: dict[str, Any] = protocol.__dict__
    wanted = {name: value for name, value in members.items() if not name.startswith("_")}
    assert wanted
    for name, value in wanted.items():
        found = getattr(memory, name)
        assert isfunction(found) == isfunction(value), name
        assert iscoroutinefunction(found) == iscoroutinefunction(value), name


@pytest.mark.parametrize("kind", ["redis", "in memory"])
async def test_the_published_memory_reads_what_ours_wrote(host: Any, kind: str) -> None:
    store = host if kind == "redis" else their_state.InMemoryStateStore()
    summarizer = Summarizer()
    ours = memory_of(store, summarizer=summarizer)
    for number in range(4):
        await ours.add_turn(full_turn(number))
    await ours.flush()
    summarizer.gate = asyncio.Event()
    await ours.add_turn(full_turn(4))
    published = theirs.DefaultShortTermMemory(config=their_config(), summarizer=Summarizer())
    await published.hydrate(store, KEY.composite())
    assert await published.get_llm_context() == await ours.get_llm_context()
    assert published.health.value == ours.health.value
    assert without_ids(published.to_dict()) == without_ids(ours.to_dict())
    assert len(ours.to_dict()["pending"]) == 1
    await ours.aclose()


@pytest.mark.parametrize("kind", ["redis", "in memory"])
async def test_ours_reads_what_the_published_memory_wrote_and_goes_on(host: Any, kind: str) -> None:
    store = host if kind == "redis" else their_state.InMemoryStateStore()
    summarizer = Summarizer()
    published = theirs.DefaultShortTermMemory(config=their_config(), summarizer=summarizer)
    for number in range(4):
        await published.add_turn(full_turn(number))
        await published.flush()
    summarizer.gate = asyncio.Event()
    await published.add_turn(full_turn(3))
    await published.persist(store, KEY.composite())
    ours = memory_of(store)
    await ours.hydrate()
    assert await ours.get_llm_context() == await published.get_llm_context()
    assert without_ids(ours.to_dict()) == without_ids(published.to_dict())
    assert len(ours.to_dict()["pending"]) == 1
    summarizer.gate.set()
    await published.flush()
    await ours.add_turn(turn(4))
    await ours.flush()
    assert names_in(ours.to_dict()) == ["0", "1", "2", "3", "3", "4"]
    await published.hydrate(store, KEY.composite())
    assert await published.get_llm_context() == await ours.get_llm_context()


def without_ids(document: dict[str, Any]) -> dict[str, Any]:
    """Leave out what only ours has, and the configuration."""
    kept = {
        name: value
        for name, value in document.items()
        if name not in {"known", "folds", "config_snapshot"}
    }
    for part in ("turns", "pending", "backlog"):
        kept[part] = [
            {name: value for name, value in given_turn.items() if name != "id"}
            for given_turn in kept[part]
        ]
    return kept


async def test_the_noted_configuration_is_the_published_one() -> None:
    config = their_config()
    published = theirs.DefaultShortTermMemory(config=config, summarizer=Summarizer())
    ours = SessionMemory(None, KEY, config=config, summarizer=Summarizer())
    assert ours.to_dict()["config_snapshot"] == published.to_dict()["config_snapshot"]


@pytest.mark.parametrize("health", ["healthy", "retry", "degraded", "recovering"])
async def test_every_health_that_the_published_memory_stores_can_be_gone_on_with(
    host: Any, health: str
) -> None:
    published = theirs.DefaultShortTermMemory(config=their_config(), summarizer=Summarizer())
    document = published.to_dict()
    rows = [published_row(number) for number in range(6)]
    document |= {"health": health, "backlog": rows[:2], "pending": rows[2:4], "turns": rows[4:]}
    await host.save_memory_state(KEY.composite(), document)
    ours = memory_of(host, degraded_retry_interval_s=0.0)
    await ours.hydrate()
    await ours.add_turn(turn(6))
    await ours.flush()
    await ours.add_turn(turn(7))
    await ours.flush()
    assert ours.health == "healthy"
    assert sorted(names_in(await stored(host))) == [str(number) for number in range(8)]
    assert (await stored(host))["backlog"] == []


def published_row(number: int) -> dict[str, Any]:
    return {"user_message": str(number), "assistant_response": "yes", "ts": 1.0}


async def test_a_planner_remembers_across_planners_and_shows_it_to_the_model(host: Any) -> None:
    model = planning.Model()
    for question in ("one", "two", "three", "four"):
        memory = create(penguiflow_memory.summarizer_of(model))
        await planning.planner_of(host, memory, model).run(question, tool_context=CONTEXT)
        await memory.flush()
        assert type(memory.health) is theirs.MemoryHealth
        await memory.aclose()
    document = await stored(host)
    assert document["summary"] == "<session_summary>\none two\n</session_summary>"
    assert [kept["user_message"] for kept in document["turns"]] == ["three", "four"]
    assert all(text in model.shown[3] for text in ("one", "two", "three"))
    assert model.summarised == [["one"], ["two"]]


async def test_the_published_memory_in_a_planner_never_stores_its_summary(host: Any) -> None:
    """Why there is a memory of ours: what its planner persists is what was there before."""
    model = planning.Model()
    planner = planning.planner_of(host, their_config(), model)
    for number in range(4):
        await planner.run(str(number), tool_context=CONTEXT)
        for _ in range(50):
            await asyncio.sleep(0)
    assert model.summarised
    assert (await stored(host))["summary"] == ""


async def test_one_planner_serves_many_sessions_at_a_time_and_mixes_none(host: Any) -> None:
    model = planning.Model()
    memory = create()
    planner = planning.planner_of(host, memory, model)

    async def talk(session: str) -> None:
        for number in range(3):
            context = {**CONTEXT, "session_id": session}
            await planner.run(f"{session}-{number}", tool_context=context)

    await asyncio.gather(*(talk(f"session{number}") for number in range(5)))
    await memory.flush()
    for number in range(5):
        key = MemoryKey("acme", "ana", f"session{number}")
        assert names_in(await stored(host, key)) == [f"session{number}-{n}" for n in range(3)]
    for shown in model.shown:
        assert len({f"session{n}" for n in range(5) if f"session{n}-" in shown}) == 1
    await memory.aclose()


async def test_a_paused_session_does_not_show_through_in_the_same_task(host: Any) -> None:
    model = planning.Model()
    planner = planning.planner_of(host, create(), model)
    await planner.run("mine", tool_context=CONTEXT)
    await planner.run("other", tool_context={**CONTEXT, "session_id": "s-2"})
    assert "mine" not in model.shown[1]


@pytest.mark.parametrize(
    "context",
    [
        {**CONTEXT, "tenant_id": "a:b", "user_id": "c"},
        {**CONTEXT, "tenant_id": "a", "user_id": "b:c"},
        {"tenant_id": "acme", "user_id": "ana"},
        {**CONTEXT, "session_id": " "},
    ],
    ids=["colon in tenant", "colon in user", "no session", "empty session"],
)
async def test_without_a_key_that_is_one_sessions_nothing_is_remembered(
    host: Any, context: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    model = planning.Model()
    memory = create()
    planner = planning.planner_of(host, memory, model)
    await planner.run("mine", tool_context=CONTEXT)
    with caplog.at_level(logging.WARNING):
        await planner.run("secret", tool_context=context)
        await planner.run("again", tool_context=context)
    assert "mine" not in model.shown[1]
    assert "secret" not in model.shown[2]
    assert names_in(await stored(host)) == ["mine"]


async def test_names_with_colons_are_told_apart_by_a_key_of_ours(host: Any) -> None:
    model = planning.Model()
    memory = create()
    planner = planning.planner_of(host, memory, model)
    contexts = [
        {**CONTEXT, "tenant_id": "a:b", "user_id": "c"},
        {**CONTEXT, "tenant_id": "a", "user_id": "b:c"},
        {**CONTEXT, "tenant_id": "a%3Ab", "user_id": "c"},
    ]
    for number, context in enumerate(contexts):
        key = memory.resolve_key(context)
        await planner.run(f"name{number}", tool_context=context, memory_key=key)
    assert not any("name0" in shown for shown in model.shown[1:])
    keys = [MemoryKey("a:b", "c", "s-1"), MemoryKey("a", "b:c", "s-1")]
    for number, key in enumerate([*keys, MemoryKey("a%3Ab", "c", "s-1")]):
        assert names_in(await stored(host, key)) == [f"name{number}"]


TEXTS = st.sampled_from(["a", "a b", " ", "", "x.y", 7, None, True])


@given(
    context=st.dictionaries(
        st.sampled_from(["tenant_id", "user_id", "session_id", "deep", "x"]), TEXTS
    ),
    deep=st.booleans(),
    explicit=st.booleans(),
    session=TEXTS,
)
def test_keys_are_found_as_a_planner_finds_them(
    context: dict[str, Any], *, deep: bool, explicit: bool, session: Any
) -> None:
    options: dict[str, Any] = {"require_explicit_key": explicit}
    if deep:
        options |= {"session_key": "deep.session", "tenant_key": "deep.session.more"}
        context = {**context, "deep": {"session": session}}
    isolation = theirs.MemoryIsolation(**options)
    ephemeral = theirs.MemoryKey("default", "anonymous", "e")
    planner = SimpleNamespace(
        _memory_singleton=None,
        _memory_config=their_config(isolation=isolation),
        _memory_ephemeral_key=ephemeral,
    )
    wanted: Any = their_rules._resolve_memory_key(planner, None, context)
    memory = create(isolation=isolation)
    found = memory.resolve_key(context)
    if wanted is ephemeral:
        assert found == memory.resolve_key({})
        assert found is not None
        assert found.tenant_id == "default"
    elif wanted is None:
        assert found is None
    else:
        assert found is not None
        assert found == MemoryKey(wanted.tenant_id, wanted.user_id, wanted.session_id)
        assert found.composite() == wanted.composite()


async def test_without_the_need_of_a_key_a_session_of_its_own_is_used_and_not_stored(
    host: Any,
) -> None:
    memory = create(isolation=theirs.MemoryIsolation(require_explicit_key=False))
    await memory.add_turn(turn("1"))
    assert "1" in str(await memory.get_llm_context())
    key = memory.resolve_key({})
    assert key is not None
    await memory.hydrate(host, key.composite())
    await memory.persist(host, key.composite())
    assert "1" in str(await memory.get_llm_context())
    assert await host.load_memory_state(key.composite()) is None
    assert await create().get_llm_context() == {}


async def test_without_a_session_at_hand_there_is_nothing_to_see_or_to_replace() -> None:
    memory = create()
    assert (memory.health.value, memory.estimate_tokens()) == ("healthy", 0)
    for call in (memory.to_dict, lambda: memory.from_dict({"version": 1, "health": "healthy"})):
        with pytest.raises(InvalidField) as caught:
            call()
        assert caught.value.field == "session"
    assert memory.get_artifact("ref") is None


async def test_a_task_that_was_started_goes_on_with_its_session(host: Any) -> None:
    memory = create()
    await memory.hydrate(host, KEY)

    async def elsewhere() -> None:
        await memory.hydrate(host, "acme:ana:other")
        await memory.add_turn(turn("2"))

    await asyncio.create_task(elsewhere())
    await memory.add_turn(turn("1"))
    assert memory.estimate_tokens() > 1
    document = memory.to_dict()
    assert names_in(document) == names_in(await stored(host)) == ["1"]
    memory.from_dict({**document, "turns": []})
    await memory.persist(host, KEY)
    assert names_in(await stored(host)) == []


async def test_sessions_with_nothing_to_do_are_forgotten(host: Any) -> None:
    memory: Any = penguiflow_memory.create_memory(
        their_config(), summarizer=Summarizer(), max_sessions=3
    )
    for number in range(10):
        session = memory.session(host, f"t:u:{number}")
        await session.hydrate()
        await session.add_turn(turn(number))
    assert len(memory._sessions) == 3
    assert memory.session(host, "t:u:9").to_dict()["turns"]


async def test_a_session_is_opened_while_all_others_have_something_to_save(host: Any) -> None:
    memory: Any = penguiflow_memory.create_memory(
        their_config(), summarizer=Summarizer(), max_sessions=1
    )
    busy = memory.session(host, "t:u:1")
    busy.from_dict(busy.to_dict())
    assert not busy.idle
    await memory.hydrate(host, "t:u:2")
    await memory.add_turn(turn("1"))
    assert names_in(memory.to_dict()) == ["1"]
    assert memory.session(host, "t:u:1") is busy


async def test_what_is_too_much_can_be_caught_as_either(host: Any) -> None:
    budget = theirs.MemoryBudget(2, 5, 20, "error")
    memory = create(budget=budget)
    await memory.hydrate(host, KEY)
    for error in (theirs.MemoryBudgetExceeded, penguiflow_memory.BudgetExceeded):
        with pytest.raises(error):
            await memory.add_turn(turn("x" * 500))


@pytest.mark.parametrize(
    ("answer", "summary"),
    [
        ('{"summary": " a "}', "<session_summary>\na\n</session_summary>"),
        ('```json\n{"summary": "<session_summary>a</session_summary>"}\n```', None),
        (('{"summary": ""}', 0.5), "<session_summary></session_summary>"),
    ],
)
async def test_a_models_answer_is_read_as_the_published_summarizer_reads_it(
    answer: Any, summary: str | None
) -> None:
    requested: list[Any] = []

    class Client:
        """Answer as told."""

        async def complete(self, **request: Any) -> Any:
            """Answer."""
            requested.append(request)
            return answer

    client = Client()
    planner = SimpleNamespace(
        _memory_summarizer=None, _memory_summarizer_client=None, _client=client
    )
    payload = {"previous_summary": "before", "turns": [{"user": "u", "assistant": "a"}]}
    published = await their_rules._get_short_term_memory_summarizer(planner)(payload)
    ours = await penguiflow_memory.summarizer_of(client)(payload)
    assert ours == published
    assert summary in {None, ours["summary"]}
    assert requested[0]["messages"] == requested[1]["messages"]


@pytest.mark.parametrize("answer", ["no JSON", "[]", '{"other": 1}', '{"summary": '])
async def test_an_answer_without_a_summary_is_a_failure(answer: str) -> None:
    class Client:
        """Answer as told."""

        async def complete(self, **_: Any) -> str:
            """Answer."""
            return answer

    with pytest.raises((ValueError, LookupError)):
        await penguiflow_memory.summarizer_of(Client())({"previous_summary": "", "turns": []})


@pytest.mark.slow
async def test_two_planner_processes_on_one_session_keep_all_turns(
    settings: Settings, store: RedisStateStore
) -> None:
    here = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    arguments = [{**here, "name": name, "runs": 20} for name in ("a", "b")]
    assert await run_processes("plan_and_remember", arguments) == [20, 20]
    document = await stored(store)
    summary = document["summary"].replace("<session_summary>", "")
    document["summary"] = summary.replace("</session_summary>", "")
    wanted = Counter(f"{name}-{number}" for name in ("a", "b") for number in range(20))
    assert Counter(names_in(document)) == wanted


async def test_a_real_session_emits_to_a_guarded_sink(host: Any) -> None:
    telemetry = pytest.importorskip("redis_state.telemetry")
    client = pytest.importorskip("prometheus_client", reason="needs the prometheus extra")
    registry = client.CollectorRegistry()
    guard = telemetry.GuardedSink(telemetry.PrometheusSink(registry))
    session = their_sessions.StreamingSession("s", state_store=host, telemetry_sink=guard)

    async def fails(_: Any) -> Any:
        raise RuntimeError("scripted")

    with contextlib.suppress(RuntimeError):
        await session.run_task(fails, query="q")
    await eventually(lambda: guard.counts.taken == 2, "both events are emitted")
    await guard.aclose()
    found = {
        sample.labels["event_type"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "redis_state_task_events_total"
    }
    assert found == {"task_spawned": 1, "task_failed": 1}
    await session.close()


def test_our_isolation_and_theirs_have_the_same_defaults() -> None:
    ours, published = MemoryIsolation(), theirs.MemoryIsolation()
    for name in ("tenant_key", "user_key", "session_key", "require_explicit_key"):
        assert getattr(ours, name) == getattr(published, name)
