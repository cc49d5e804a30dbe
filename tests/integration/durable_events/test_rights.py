"""A user of PostgreSQL who lacks a right: an error of the configuration, at once."""

from __future__ import annotations

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")

import psycopg
from pydantic import SecretStr

from redis_state import ConfigError
from redis_state.postgres.link import PostgresLink
from tests.support.servers.postgres import OwnPostgres


async def test_a_user_without_a_right_is_named_as_an_error_of_the_configuration(
    postgres: OwnPostgres,
) -> None:
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as link:
        await link.execute("DROP ROLE IF EXISTS nobody_much")
        await link.execute("CREATE ROLE nobody_much LOGIN")
    url = SecretStr(postgres.url.replace("postgres@", "nobody_much@"))
    opened = PostgresLink(
        url,
        address="postgresql://server",
        schema="redis_state_of_nobody",
        migrations=("CREATE TABLE redis_state_of_nobody.t (n int)",),
        call_timeout_s=60,
    )
    try:
        with pytest.raises(ConfigError, match=r"lacks a right on the schema .* 42501"):
            await opened.run(lambda connection: connection.execute("SELECT 1"))
    finally:
        await opened.aclose()
