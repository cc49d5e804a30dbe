"""OpenAPI 3.1 of the operations, from the models of their bodies and answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from redis_state.gateway.calls import LONGEST_KEY, Operation, Over
from redis_state.gateway.results import ErrorResult

_REF = "#/components/schemas/{model}"
_JSON = "application/json"
_PLACE = re.compile(r"\{(\w+)\}")


def describe(operations: Sequence[Operation], *, version: str) -> dict[str, Any]:
    """Return the description of operations."""
    schemas = _schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        described = _operation(operation, schemas)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "redis_state gateway",
            "version": version,
            "description": "Tasks, streams and approvals over HTTP. Ids in paths are "
            "percent-encoded once. Who does something is the caller.",
        },
        # From where this description is served.
        "servers": [{"url": "../"}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(operations: Iterable[Operation]) -> dict[str, Any]:
    given: dict[type[BaseModel], None] = {}
    shown: dict[type[BaseModel], None] = {ErrorResult: None}
    for operation in operations:
        for model in (operation.query, operation.body):
            if model is not None:
                given[model] = None
        if operation.result is not None:
            shown[operation.result] = None
    models: list[Any] = [(model, "validation") for model in given]
    models += [(model, "serialization") for model in shown]
    _, document = models_json_schema(models, ref_template=_REF)
    found: dict[str, Any] = document["$defs"]
    return found


def _operation(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    documented = (operation.endpoint.__doc__ or "").strip()
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": " ".join(documented.split()),
        "tags": [_tag(operation.path)],
        "parameters": [
            *_path(operation),
            *_query(operation, schemas),
            *_key(operation),
            *_last_event(operation),
        ],
        "responses": _responses(operation),
        "x-right": operation.right.value,
        "x-over": operation.over.name.lower(),
    }
    if operation.over is Over.NOTHING:
        described["security"] = []
        del described["x-right"]
    if operation.body is not None:
        content = {_JSON: {"schema": _ref(operation.body)}}
        described["requestBody"] = {"required": True, "content": content}
    if operation.name == "decide_hook":
        described["requestBody"] = _hook_body()
    return described


def _path(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PLACE.findall(operation.path)
    ]


def _query(operation: Operation, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    if operation.query is None:
        return []
    schema = schemas[operation.query.__name__]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "schema": _given_schema(its),
        }
        | ({"description": its["description"]} if "description" in its else {})
        for name, its in schema["properties"].items()
    ]


def _given_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a parameter's schema. A query cannot say null: there it is left out."""
    kept = {name: value for name, value in schema.items() if name not in ("title", "description")}
    if kept.get("default", "") is None:
        del kept["default"]
    others = [each for each in kept.get("anyOf", ()) if each != {"type": "null"}]
    if len(others) == 1:
        del kept["anyOf"]
        kept |= others[0]
    return kept


def _key(operation: Operation) -> list[dict[str, Any]]:
    if operation.key is None:
        return []
    return [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": operation.key,
            "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY},
        }
    ]


def _last_event(operation: Operation) -> list[dict[str, Any]]:
    """Return the header of a client that connects again, where it is read as ``after`` is."""
    reads = operation.query is not None and "after" in operation.query.model_fields
    if operation.media_type != "text/event-stream" or not reads:
        return []
    return [
        {
            "name": "Last-Event-ID",
            "in": "header",
            "required": False,
            "description": "The cursor to read on after. It comes before `after`.",
            "schema": {"type": "string"},
        }
    ]


def _responses(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {operation.media_type: {}}
    if operation.result is not None:
        content = {operation.media_type: {"schema": _ref(operation.result)}}
    elif operation.media_type == _JSON:
        content = {_JSON: {"schema": {"type": "object"}}}
    good = {"content": content}
    found = {operation.status: good | {"description": _phrase(operation.status)}}
    statuses = {*operation.answers, 503}
    if operation.over is not Over.NOTHING:
        statuses |= {401, 422, 429}
    if operation.body is not None:
        statuses |= {400, 415, 422}
    if operation.name == "decide_hook":
        statuses |= {422, 429}
    for status in sorted(statuses):
        if status == HTTPStatus.NO_CONTENT:
            found[status] = {"description": _phrase(status)}
        elif status < HTTPStatus.BAD_REQUEST:
            found[status] = good | {"description": _phrase(status)}
        else:
            found[status] = _error(operation, status)
    return {str(status): its for status, its in sorted(found.items())}


def _error(operation: Operation, status: int) -> dict[str, Any]:
    content: dict[str, Any] = {_JSON: {"schema": _ref(ErrorResult)}}
    if operation.path.startswith("/v1/hooks"):
        content["text/html"] = {}
    return {"description": _phrase(status), "content": content}


def _hook_body() -> dict[str, Any]:
    as_json = {
        "type": "object",
        "required": ["approved"],
        "properties": {"approved": {"type": "boolean"}, "value": {}},
    }
    as_form = {
        "type": "object",
        "required": ["decision"],
        "properties": {
            "decision": {"type": "string", "enum": ["approve", "reject"]},
            "value": {"type": "string"},
        },
    }
    form = "application/x-www-form-urlencoded"
    return {"required": True, "content": {_JSON: {"schema": as_json}, form: {"schema": as_form}}}


def _ref(model: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": _REF.format(model=model.__name__)}


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase


def _tag(path: str) -> str:
    parts = [part for part in path.split("/") if part and not part.startswith("{")]
    named = [part for part in parts if part != "v1"]
    return "tasks" if "tasks" in named else named[0]
