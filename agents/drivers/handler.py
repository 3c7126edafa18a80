"""The driver of plain functions `(ctx, input) -> output`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from pydantic import TypeAdapter, ValidationError

from agents import canonical, retrying, settlement
from agents.attempt import Attempt, Result
from agents.canonical import Json, NotJson
from agents.drivers.context import Context, encode_output
from agents.errors import AgentFailure, AgentInputError, NeedsPerson, RetryLater, StepError
from agents.registry import describe, is_async
from agents.states import Outcome
from maintenance.errors import INTERRUPTIONS, described, kind_of

logger = structlog.get_logger("wakeful.agents")

INPUT_TAG = "AgentInputError"
OUTPUT_TAG = "AgentOutputError"
MAX_PROBLEMS = 5
"""Problems of one value that an error text lists."""


class HandlerDriver:
    """Runs one function. Two drivers of the same function and types are equal."""

    def __init__(
        self,
        handler: Callable[..., Any],
        *,
        input_type: Any = None,
        output_type: Any = None,
        retry: tuple[type[Exception], ...] = (),
    ) -> None:
        self._handler = handler
        self._retry = retry
        self._types = (input_type, output_type)
        self._input: TypeAdapter[Any] | None = None if input_type is None else TypeAdapter(input_type)
        self._output: TypeAdapter[Any] | None = None if output_type is None else TypeAdapter(output_type)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HandlerDriver) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity()[:1])

    def __repr__(self) -> str:
        return describe(self._handler)

    def _identity(self) -> tuple[Any, ...]:
        return describe(self._handler), self._types, self._retry

    def encode_input(self, value: object) -> Json:
        """The canonical text of an input. Raises `AgentInputError`, which never shows the value."""
        try:
            return canonical.encode(_dumped(self._input, value))
        except ValidationError as error:
            raise AgentInputError(f"the input does not fit: {problems(error)}") from None
        except NotJson as error:
            raise AgentInputError(f"the input is not JSON: {error}") from None

    def run(self, attempt: Attempt) -> Result:
        """Calls the function and turns whatever comes of it into a result, or into the attempt's stop."""
        try:
            value = self._decoded(attempt.claimed.input)
        except ValidationError as error:
            return _failed(INPUT_TAG, f"the stored input does not fit the agent any more: {problems(error)}")
        try:
            output = self._call(attempt, value)
        except INTERRUPTIONS:
            raise
        except AgentFailure as failure:
            result = _failed(failure.tag, failure.message)
        except NeedsPerson:
            attempt.raise_if_stopped()
            raise
        except RetryLater as asked:
            attempt.raise_if_stopped()
            result = retrying.later(attempt, asked)
        except self._retry as error:
            attempt.raise_if_stopped()
            result = retrying.later(attempt, RetryLater(described(error), tag=kind_of(error)))
        except Exception as error:
            logger.warning("handler.raised", thread=attempt.thread_id, kind=kind_of(error), exc_info=error)
            result = _failed(kind_of(error), described(error))
        else:
            result = self._completed(output)
        attempt.raise_if_stopped()
        return result

    def _call(self, attempt: Attempt, value: Any) -> Any:
        if is_async(self._handler):
            from agents.drivers.asynchronous import call  # noqa: PLC0415 - asyncio only for who uses it

            return call(self._handler, attempt, value)
        return self._handler(Context(attempt), value)

    def _decoded(self, text: str) -> Any:
        return canonical.parse(text) if self._input is None else self._input.validate_json(text)

    def _completed(self, output: Any) -> Result:
        try:
            text = encode_output("the handler", _dumped(self._output, output))
        except ValidationError as error:
            return _failed(OUTPUT_TAG, f"the output does not fit: {problems(error)}")
        except StepError as error:
            return _failed(OUTPUT_TAG, error.message)
        return Result(outcome=Outcome.COMPLETED, result=text)


def problems(error: ValidationError) -> str:
    """What is wrong with a value, where, without showing it."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    listed = [f"{'.'.join(map(str, one['loc'])) or 'the value'}: {one['msg']}" for one in found[:MAX_PROBLEMS]]
    more = [f"and {len(found) - MAX_PROBLEMS} more"] if len(found) > MAX_PROBLEMS else []
    return "; ".join([*listed, *more])


def _dumped(adapter: TypeAdapter[Any] | None, value: object) -> object:
    """The plain JSON form of a value: validated by its type if there is one."""
    if adapter is None:
        return value
    return adapter.dump_python(adapter.validate_python(value), mode="json", by_alias=True)


def _failed(tag: str, message: str) -> Result:
    return Result(outcome=Outcome.FAILED, failure=settlement.failed(tag, message))
