"""Forms in Chromium whose login has ended: what a person wrote comes back."""

from __future__ import annotations

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("playwright", reason="no playwright: pip install playwright")

from tests.integration.gateway.console.conftest import KEYS
from tests.support.browser.chromium import CHROMIUM, People
from tests.support.http.gateway import Served, ends, paused

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: install it, or set CHROMIUM"),
]
WRITTEN = '  two lines\nof "text" & <b>\u00e9</b>'


@pytest.mark.parametrize("scripts", [True, False])
async def test_a_person_logs_in_again_and_has_what_was_written(
    console: Served, people: People, *, scripts: bool
) -> None:
    await console.client.submit("ask", session_id="s", task_id="t")
    await paused(console, "s", "t")
    ann = await people.tab(KEYS["ann"], java_script_enabled=scripts)
    await people.go(ann, "/task", session="s", task="t")
    await people.run(ann.fill("#steer-text", WRITTEN))
    await people.run(ann.context.clear_cookies())
    await people.run(ann.click("form[action*='/task/steer'] button"))
    assert "two lines" in await people.run(ann.inner_text("main"))
    await people.run(ann.fill("#credential", KEYS["ann"]))
    await people.run(ann.click("button.primary"))
    assert await people.run(ann.input_value("#steer-text")) == WRITTEN
    assert await console.store.list_steering("s", task_id="t") == []
    await people.run(ann.click("form[action*='/task/steer'] button"))
    assert "The event was sent." in await people.run(ann.inner_text(".said"))
    (event,) = await console.store.list_steering("s", task_id="t")
    assert event.payload["text"].splitlines() == WRITTEN.splitlines()

    await people.go(ann, "/inbox", tag="finance")
    await people.run(ann.fill("input[name=value]", "fine"))
    await people.run(ann.context.clear_cookies())
    await people.run(ann.click("button[value=approve]"))
    await people.run(ann.fill("#credential", KEYS["ann"]))
    await people.run(ann.click("button.primary"))
    assert await people.run(ann.input_value("input[name=value]")) == "fine"
    await people.run(ann.click("button[value=approve]"))
    assert "Approved." in await people.run(ann.inner_text(".said"))
    assert ann.url.endswith("/console/inbox?tag=finance&said=approved")
    assert (await ends(console, "s", "t")).result["value"] == "fine"
    # The browser says itself that there was no login.
    assert [each for each in people.complaints if "401" not in each] == []
