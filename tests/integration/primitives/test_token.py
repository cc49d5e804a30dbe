from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st

from redis_state import Settings
from redis_state.errors import TokenResolved, TokenUnknown
from redis_state.primitives.token import Tokens
from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.models import explore
from tests.support.scripts.replies import HOUR, clock_ms, clock_passes, outcome
from tests.support.servers.faults import run_processes

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "open briefly", "consume", "consume"]),
        st.sampled_from(["one", "two", "three"]),
        st.sampled_from(["p", "q"]),
        st.sampled_from(["c", "d", None]),
    ),
    min_size=25,
    max_size=50,
)


@dataclass
class Model:
    state: str
    payload: bytes
    claim: str | None = None


class TokenPlay:
    """Do each step on real tokens and on a model of them, and compare."""

    def __init__(self, scripts: Scripts) -> None:
        self.scripts = scripts
        self.keys = Keys(scripts.transport.settings.namespace)
        self.run = uuid.uuid4().hex
        self.tokens = Tokens(scripts, keep_ms=HOUR)
        self.model: dict[str, Model] = {}

    async def do(self, name: str, token: str, text: str, claim: str | None) -> str:
        key, known = self.keys.pause(self.run + token), self.model.get(token)
        if name == "consume":
            return await self.consume(key, known, claim)
        briefly = name == "open briefly"
        call = self.tokens.open(key, text.encode(), ttl_ms=1 if briefly else HOUR)
        opened = await outcome(call, TokenResolved)
        if known is not None and known.state == "resolved":
            if known.payload == text.encode():
                assert opened is False
                return "opened again after use"
            check_resolved(opened, known)
            return "used with another payload"
        assert opened is True
        self.model[token] = Model("expired" if briefly else "open", text.encode())
        if briefly:
            await clock_passes(self.scripts, await clock_ms(self.scripts) + 1)
        return f"opened when {known.state if known else 'new'}"

    async def consume(self, key: str, known: Model | None, claim: str | None) -> str:
        call = self.tokens.consume(key, actor=f"by {claim}", decision=[claim], claim=claim)
        payload = await outcome(call, TokenUnknown, TokenResolved)
        if known is None or known.state == "expired":
            assert isinstance(payload, TokenUnknown)
            assert payload.expired == (known is not None)
            return "expired" if known else "unknown"
        if known.state == "open":
            assert payload == known.payload
            known.state, known.claim = "resolved", claim
            return "given"
        if claim is not None and claim == known.claim:
            assert payload == known.payload
            return "given again"
        check_resolved(payload, known)
        return "taken"


def check_resolved(error: object, known: Model) -> None:
    assert isinstance(error, TokenResolved)
    assert (error.actor, error.decision) == (f"by {known.claim}", [known.claim])


async def play(scripts: Scripts, steps: list[tuple[str, str, str, str | None]]) -> list[str]:
    tokens = TokenPlay(scripts)
    return [await tokens.do(*step) for step in steps]


@pytest.mark.fuzz
def test_tokens_are_what_the_model_says(settings: Settings) -> None:
    wanted = {"opened when new", "opened when open", "opened when expired"}
    wanted |= {"opened again after use", "used with another payload"}
    wanted |= {"unknown", "expired", "taken", "given", "given again"}
    explore(settings, STEPS, play, wanted=wanted)


async def test_any_text_may_name_the_consumer_and_its_claim(scripts: Scripts, keys: Keys) -> None:
    tokens = Tokens(scripts, keep_ms=HOUR)
    key = keys.pause("token")
    await tokens.open(key, b"\x00\xff", ttl_ms=HOUR)
    for _ in range(2):
        assert await tokens.consume(key, actor="\ud800", claim="\udfff") == b"\x00\xff"
    with pytest.raises(TokenResolved) as error:
        await tokens.consume(key, actor="other")
    assert error.value.actor == "\ud800"


async def test_of_4_processes_exactly_one_claim_gets_each_token(
    scripts: Scripts, keys: Keys, settings: Settings
) -> None:
    names = [f"token-{number}" for number in range(100)]
    tokens = Tokens(scripts, keep_ms=HOUR)
    for name in names:
        await tokens.open(keys.pause(name), name.encode(), ttl_ms=HOUR)
    shared = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    arguments = [{**shared, "does": "consume", "tokens": names}] * 4
    wins: Counter[str] = Counter()
    for won in await run_processes("use_primitives", arguments):
        wins.update(won)
    assert wins == Counter(dict.fromkeys(names, 1))
