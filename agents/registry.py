"""Which agents this process knows: a name and the driver that runs it.

Imports no model, so that an app's `durable_agents.py` and this package itself can import it at any time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agents.errors import DuplicateAgent, UnknownAgent

if TYPE_CHECKING:
    from agents.attempt import Attempt, Result
    from agents.canonical import Json

MAX_NAME = 200

Handler = TypeVar("Handler", bound=Callable[..., Any])


class Driver(Protocol):
    """How submissions of one agent are done."""

    def encode_input(self, value: object) -> Json:
        """The canonical text of an input, at admission. Raises `AgentInputError`."""

    def run(self, attempt: Attempt) -> Result:
        """Works on the attempt's submission to its end; leaves by an exception of `attempt` if it is stopped."""


_drivers: dict[str, Driver] = {}


def agent(
    name: str,
    *,
    input: Any = None,  # noqa: A002 - the words of the door
    output: Any = None,
    retry: tuple[type[Exception], ...] = (),
) -> Callable[[Handler], Handler]:
    """Declares a function `(ctx, input) -> output` as the agent `name`; the function itself is returned unchanged.

    `input` and `output` are types that pydantic can validate; without them the handler deals in plain JSON. Errors of
    the types in `retry` are tried again with backoff, within the retry budget; all others settle the submission as
    failed. Raises `DuplicateAgent` if the name is taken.
    """

    def declare(handler: Handler) -> Handler:
        from agents.drivers.handler import HandlerDriver  # noqa: PLC0415 - it imports models

        register(name, HandlerDriver(handler, input_type=input, output_type=output, retry=retry))
        return handler

    return declare


def register(name: str, driver: Driver) -> None:
    """Declares an agent by its driver. Raises `DuplicateAgent`, `ValueError` for a name that cannot be stored."""
    if not name or len(name) > MAX_NAME or not name.isprintable():
        message = f"an agent's name is 1 to {MAX_NAME} printable characters"
        raise ValueError(message)
    known = _drivers.get(name)
    if known is not None and known != driver:
        raise DuplicateAgent(f"two agents are declared as {name!r}: {known} and {driver}")
    _drivers[name] = driver


def unregister(name: str) -> None:
    """Forgets an agent (for tests)."""
    _drivers.pop(name, None)


def names() -> list[str]:
    """The agents of this process, in alphabetical order."""
    return sorted(_drivers)


def get(name: str) -> Driver:
    """The driver of an agent. Raises `UnknownAgent` with names that look alike."""
    try:
        return _drivers[name]
    except KeyError:
        raise UnknownAgent(str(name), get_close_matches(str(name), _drivers, n=3)) from None


def describe(handler: Callable[..., Any]) -> str:
    """Where a handler is defined, for error texts."""
    return f"{handler.__module__}.{handler.__qualname__}"


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine."""
    return inspect.iscoroutinefunction(handler)
