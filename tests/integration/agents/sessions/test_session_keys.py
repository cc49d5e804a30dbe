"""The key of a session's model is kept, redacted or encrypted where it is stored."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr

from redis_state import RedisStateStore
from redis_state.agents import (
    AgentDefinition,
    AgentSession,
    FrozenMap,
    LlmConfig,
    SessionStore,
)
from redis_state.errors import (
    ConfigError,
)
from tests.support.agents.sessions import fields_of, stepped

MODEL = LlmConfig(api_url="https://x", api_key="s3cr3t", model="m")


def keyed(session_id: str) -> AgentSession:
    definition = AgentDefinition(name="coder", llm_config=MODEL)
    return AgentSession.fresh(definition, session_id=session_id)


@pytest.mark.parametrize("protect", ["keep", "redact", "encrypt"])
async def test_a_models_key_is_protected_at_rest(protect: Any, store: RedisStateStore) -> None:
    key = SecretStr(Fernet.generate_key().decode())
    sessions = SessionStore(store, protect=protect, encryption_key=key)
    session = await sessions.create(keyed("a"))
    assert session.state.llm_config == MODEL
    session = await sessions.save(session.with_state(stepped(session.state, 1)))
    stored = b"".join((await fields_of(store, "a")).values())
    assert (b"s3cr3t" in stored) is (protect == "keep")
    loaded = await sessions.get("a")
    kept = "[redacted]" if protect == "redact" else "s3cr3t"
    assert loaded.state.llm_config is not None
    assert loaded.state.llm_config.api_key == kept
    assert isinstance(loaded.definition.llm_config, LlmConfig)
    assert loaded.definition.llm_config.api_key == kept
    assert "s3cr3t" not in repr(session) + repr(loaded) + repr(loaded.redacted().to_dict())
    again = await sessions.save(loaded)
    assert (await sessions.get("a")).to_dict() == again.to_dict()


@pytest.mark.parametrize("protect", ["redact", "encrypt"])
async def test_a_key_that_was_stored_in_clear_is_protected_by_the_next_save(
    protect: Any, store: RedisStateStore
) -> None:
    params = FrozenMap({"api-version": "1", "subscription-key": "s3cr3t too"})
    model = MODEL.changed(query_params=params)
    definition = AgentDefinition(name="coder", llm_config=model)
    await SessionStore(store).create(AgentSession.fresh(definition, session_id="a"))
    key = SecretStr(Fernet.generate_key().decode())
    sessions = SessionStore(store, protect=protect, encryption_key=key)
    loaded = await sessions.get("a")
    assert loaded.definition.llm_config == model
    saved = await sessions.save(loaded.with_state(stepped(loaded.state, 1)))
    stored = b"".join((await fields_of(store, "a")).values())
    assert b"s3cr3t" not in stored
    assert b'"api-version":"1"' in stored
    found = (await sessions.get("a")).definition.llm_config
    assert isinstance(found, LlmConfig)
    assert found == (model.redacted() if protect == "redact" else model)
    # What is protected already is not written again.
    before = (await fields_of(store, "a"))["definition"]
    await sessions.save(saved.with_state(stepped(saved.state, 2)))
    again = await sessions.get("a")
    await sessions.save(again.with_state(stepped(again.state, 3)))
    assert (await fields_of(store, "a"))["definition"] == before


async def test_what_is_redacted_holds_no_key_in_any_form(store: RedisStateStore) -> None:
    sessions = SessionStore(store)
    params = FrozenMap({"subscription-key": "s3cr3t too"})
    definition = AgentDefinition(name="coder", llm_config=MODEL.changed(query_params=params))
    await sessions.create(AgentSession.fresh(definition, session_id="a"))
    loaded = await sessions.get("a")
    read = AgentSession.from_dict(loaded.to_dict())
    for session in (loaded, read):
        assert b"s3cr3t" in pickle.dumps(session)
        redacted = session.redacted()
        assert b"s3cr3t" not in pickle.dumps(redacted)
        assert "s3cr3t" not in json.dumps(redacted.to_dict()) + repr(session)
        assert list(redacted.to_dict()["definition"]) == list(session.to_dict()["definition"])


async def test_a_key_is_opened_by_nobody_else(store: RedisStateStore) -> None:
    mine, other = (SecretStr(Fernet.generate_key().decode()) for _ in range(2))
    await SessionStore(store, protect="encrypt", encryption_key=mine).create(keyed("a"))
    with pytest.raises(ConfigError, match="not the one"):
        await SessionStore(store, protect="encrypt", encryption_key=other).load("a")
    sealed = await SessionStore(store).get("a")
    assert sealed.state.llm_config is not None
    assert sealed.state.llm_config.api_key.startswith("fernet:")
    await SessionStore(store).save(sealed)
    opened = await SessionStore(store, protect="encrypt", encryption_key=mine).get("a")
    assert opened.state.llm_config == MODEL


@pytest.mark.parametrize(
    "options",
    [
        {"protect": "hide"},
        {"protect": "encrypt"},
        {"protect": "encrypt", "encryption_key": SecretStr("s3cr3t")},
    ],
)
def test_a_protection_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    store = RedisStateStore.from_url("redis://nobody.invalid:1/0")
    with pytest.raises(ConfigError) as refused:
        SessionStore(store, **options)
    assert "s3cr3t" not in str(refused.value)
