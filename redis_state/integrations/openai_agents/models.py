"""A model whose requests are steps: each is made once, and a replay gets the recorded response."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

from agents import Model, ModelProvider, ModelResponse, TResponseInputItem, Usage
from agents.exceptions import ModelBehaviorError
from agents.items import TResponseOutputItem, TResponseStreamEvent
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest
from agents.usage import deserialize_usage, serialize_usage
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseOutputItemDoneEvent,
    ResponseUsage,
)
from pydantic import TypeAdapter, ValidationError

from redis_state.errors import InvalidField
from redis_state.integrations.agent_runs.running import do_unit
from redis_state.integrations.openai_agents.events import ResponseTexts
from redis_state.integrations.openai_agents.steering import take_steering, with_steering
from redis_state.integrations.openai_agents.terms import AgentRun, current_run

_OUTPUT: TypeAdapter[list[TResponseOutputItem]] = TypeAdapter(list[TResponseOutputItem])
_REQUEST = (
    "system_instructions",
    "input",
    "model_settings",
    "tools",
    "output_schema",
    "handoffs",
    "tracing",
)
_FAILED = ("response.incomplete", "response.failed", "error", "response.error")


class StepModel(Model):
    """A model of the application, whose requests are steps in a task."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        """Return what only the model itself has, such as its name."""
        return getattr(self.model, name)

    async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
        """Return the model's response, from the journal if it is there."""
        run = current_run()
        if run is None:
            return await self.model.get_response(*arguments, **options)
        return await self._request(run, _request(arguments, options), streams=run.terms.publish)

    async def stream_response(
        self, *arguments: Any, **options: Any
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Yield that the response is complete: in a task nothing else is the same in a replay."""
        run = current_run()
        if run is None:
            async for event in self.model.stream_response(*arguments, **options):
                yield event
            return
        found = await self._request(run, _request(arguments, options), streams=True)
        yield ResponseCompletedEvent(
            response=_completed(found), sequence_number=0, type="response.completed"
        )

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """Return the model's own advice."""
        return self.model.get_retry_advice(request)

    async def close(self) -> None:
        """Close the model."""
        await self.model.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        # The wrapper stands for the model in the SDK's book of models that a run has used.
        await self.model._cleanup_on_run_end(owner)  # noqa: SLF001

    async def _request(
        self, run: AgentRun, request: dict[str, Any], *, streams: bool
    ) -> ModelResponse:
        """Make the next request of a run. A failed one takes no number: it is made again."""
        place = run.scope.place("model", str(run.requests + 1))
        items = request["input"]
        # OpenAI's server has what earlier requests of the conversation brought.
        is_kept = bool(request.get("previous_response_id") or request.get("conversation_id"))

        async def work() -> dict[str, Any]:
            steered = take_steering(run)
            request["input"] = with_steering([] if is_kept else run.steered, items, steered)
            if streams:
                response = await self._streamed(run, request)
            else:
                response = await self.model.get_response(**request)
            written = _write(response)
            _read(written)
            return {"response": written, "steered": steered}

        found, _ = await do_unit(run.scope, "model", place, work, run.terms.retry, cuts=True)
        run.requests += 1
        run.unrecorded.clear()
        await _keep_steering(run, items, found["steered"])
        return _read(found["response"])

    async def _streamed(self, run: AgentRun, request: dict[str, Any]) -> ModelResponse:
        completed: Response | None = None
        output: list[TResponseOutputItem] = []
        async with ResponseTexts(run) as texts:
            async for event in self.model.stream_response(**request):
                if event.type in _FAILED:
                    raise ModelBehaviorError(f"the model's response ended as {event.type}")
                if isinstance(event, ResponseCompletedEvent):
                    completed = event.response
                elif isinstance(event, ResponseOutputItemDoneEvent):
                    output.append(event.item)
                else:
                    await texts.show(event)
        if completed is None:
            raise ModelBehaviorError("the model's stream ended without a response")
        return ModelResponse(
            output=completed.output or output,
            usage=_usage_of(completed.usage),
            response_id=completed.id,
        )


class StepProvider(ModelProvider):
    """A provider of models whose requests are steps in a task."""

    def __init__(self, provider: ModelProvider) -> None:
        self._provider = provider

    def get_model(self, model_name: str | None) -> Model:
        """Return a model by its name."""
        return as_steps(self._provider.get_model(model_name))

    async def aclose(self) -> None:
        """Close the provider."""
        await self._provider.aclose()


def as_steps(model: Model) -> StepModel:
    """Return a model whose requests are steps."""
    return model if isinstance(model, StepModel) else StepModel(model)


async def _keep_steering(
    run: AgentRun, items: str | list[TResponseInputItem], steered: list[TResponseInputItem]
) -> None:
    """Add what steering has added to a request to later ones too, and to the session."""
    if not steered:
        return
    place = 1 if isinstance(items, str) else len(items)
    run.steered += [(place, item) for item in steered]
    if run.history is not None:
        await run.history.add_items(steered)


def _request(arguments: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(_REQUEST, arguments, strict=False)) | options


def _write(response: ModelResponse) -> dict[str, Any]:
    return {
        "output": [item.model_dump(mode="json", exclude_unset=True) for item in response.output],
        "usage": serialize_usage(response.usage),
        "response_id": response.response_id,
        "request_id": response.request_id,
        "raw_usage": response.raw_usage,
    }


def _read(found: dict[str, Any]) -> ModelResponse:
    """Read a recorded response. Errors: InvalidField, which quotes nothing of it."""
    try:
        output = _OUTPUT.validate_python(found["output"])
    except ValidationError as error:
        place = ".".join(str(each) for each in error.errors(include_input=False)[0]["loc"][:1])
    else:
        return ModelResponse(
            output=output,
            usage=deserialize_usage(found["usage"]),
            response_id=found["response_id"],
            request_id=found["request_id"],
            raw_usage=found["raw_usage"],
        )
    raise InvalidField("response", f"of a model has an output that cannot be recorded: {place}")


def _usage_of(usage: ResponseUsage | None) -> Usage:
    if usage is None:
        return Usage(requests=1)
    return Usage(
        requests=1,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        input_tokens_details=usage.input_tokens_details,
        output_tokens_details=usage.output_tokens_details,
    )


def _completed(found: ModelResponse) -> Response:
    usage = found.usage
    return Response(
        id=found.response_id or "recorded",
        created_at=0,
        model="",
        object="response",
        output=found.output,
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
        usage=ResponseUsage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            total_tokens=usage.total_tokens,
            input_tokens_details=cast("Any", usage.input_tokens_details),
            output_tokens_details=cast("Any", usage.output_tokens_details),
        ),
    )
