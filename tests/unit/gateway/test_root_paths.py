"""The path that a proxy serves a gateway below."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state.errors import ConfigError
from redis_state.gateway.requests.root_path import check_root_path


@pytest.mark.parametrize("own", ["v1", "console", "healthz", "readyz", "metrics"])
@pytest.mark.parametrize("form", ["/{}", "/{}/", "/{}/x"])
def test_a_root_path_that_would_hide_a_route_of_the_gateway_is_refused(own: str, form: str) -> None:
    with pytest.raises(ConfigError, match=f"/{own}"):
        check_root_path(form.format(own))


@pytest.mark.parametrize("root_path", ["", "/agents", "/a/metrics", "/healthz-a", "/v2"])
def test_a_root_path_beside_them_is_accepted(root_path: str) -> None:
    assert check_root_path(f"{root_path}/") == root_path
