"""Coroutine handlers: run on an event loop of their own, in the thread of the pass.

What touches the database goes to a helper thread, where Django's own async ORM calls go as well: one connection for
both, kept between attempts.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from inspect import isawaitable
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connection, connections

from agents import approvals, calling, canonical, events, joining, timers
from agents.approvals import Decision
from agents.attempt import Attempt
from agents.drivers.context import BaseContext, as_duration, encode_output, optional_duration
from agents.tries import Call, Ended, Try
from maintenance.errors import INTERRUPTIONS

LOOK = 0.25
"""Seconds between two looks whether a waiting handler must stop."""

Tasks = set[asyncio.Task[Any]]


class HandlerCancelled(Exception):
    """The handler cancelled itself."""


class AsyncContext(BaseContext):
    """The `ctx` of an `async def` handler."""

    _can_await = True

    def __init__(self, attempt: Attempt, calls: Tasks) -> None:
        """`calls`: where the tool calls that are being made are found."""
        super().__init__(attempt)
        self._calls = calls

    async def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """As the step of a plain function; `fn` may be a coroutine function. A plain one blocks the loop."""
        name = self._take_name(name)
        recorded = await sync_to_async(self._attempt.recorded)(name)
        if recorded is None:
            await sync_to_async(self._attempt.boundary)()
            output = fn(*args, **kwargs)
            if isawaitable(output):
                output = await output
            recorded = encode_output(f"step {name!r}", output)
            await sync_to_async(self._attempt.record_step)(name, recorded)
        return canonical.parse(recorded)

    async def call_tool(
        self,
        tool: str | Callable[..., Any],
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        name: str | None = None,
        approval: bool = False,
        expires_in: float | timedelta | None = None,
        **more: Any,
    ) -> Any:
        """As the `call_tool` of a plain function. Calls may run beside each other (`asyncio.gather`).

        A coroutine function runs on the loop; a plain one on the helper thread, one at a time. A call that has begun
        goes on to its record when the handler no longer waits for it (a timeout, the failure of a sibling).
        """
        call = self._call(tool, arguments, name, more)
        if approval:
            self._take_name(call.name.removeprefix(self._prefix), "approval")
            await sync_to_async(self._approved)(call, expires_in)
        made = asyncio.ensure_future(self._made(call))
        self._calls.add(made)
        made.add_done_callback(self._forget)
        return call.value(await asyncio.shield(made))

    async def _made(self, call: Call) -> Ended:
        begun = await sync_to_async(calling.begin)(self._attempt, call)
        if isinstance(begun, Ended):
            return begun
        with calling.exposed(self._attempt, begun) as span:
            outcome = await self._outcome(begun)
            span.note(outcome=calling.outcome_name(outcome))
        return await sync_to_async(calling.finish)(self._attempt, begun, outcome)

    async def _outcome(self, made: Try) -> calling.Outcome:
        run = made.bound(self._attempt, self._within(made.call))
        try:
            output = run() if made.call.tool.is_async else await sync_to_async(run)()
            if isawaitable(output):
                output = await output
        except INTERRUPTIONS:
            raise
        except Exception as error:  # noqa: BLE001 - what a tool raises is an outcome of its call
            return calling.raised(made, error)
        return calling.returned(made, output)

    def _forget(self, made: asyncio.Task[Any]) -> None:
        """Its exception reaches whoever awaits the call; nobody need."""
        self._calls.discard(made)
        if not made.cancelled():
            made.exception()

    async def followups(self, limit: int = joining.MAX_AT_ONCE) -> list[Any]:
        """As the `followups` of a plain function."""
        return await sync_to_async(joining.followups)(self._attempt, self._name_or_turn(None, "followups"), limit)

    async def approval(
        self, name: str, tool: str, arguments: Any = None, *, expires_in: float | timedelta | None = None
    ) -> Decision:
        """As the `approval` of a plain function."""
        name = self._take_name(name, "approval")
        duration = optional_duration(expires_in)
        return await sync_to_async(approvals.ask)(self._attempt, name, tool, arguments, duration)

    async def wait_event(
        self,
        event: str,
        *,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109 - a durable time, not one of the loop
        name: str | None = None,
    ) -> Any:
        """As the `wait_event` of a plain function."""
        turn = self._name_or_turn(name, "event")
        return await sync_to_async(events.wait)(self._attempt, turn, event, optional_duration(timeout))

    async def sleep(self, duration: float | timedelta, *, name: str | None = None) -> None:
        """As the `sleep` of a plain function: the attempt ends, and the handler is run again later."""
        await sync_to_async(timers.sleep)(self._attempt, self._name_or_turn(name, "timer"), as_duration(duration))

    async def sleep_until(self, moment: datetime, *, name: str | None = None) -> None:
        """As the `sleep_until` of a plain function."""
        await sync_to_async(timers.sleep_until)(self._attempt, self._name_or_turn(name, "timer"), moment)


def call(handler: Callable[[AsyncContext, Any], Awaitable[Any]], attempt: Attempt, value: Any) -> Any:
    """Runs the handler to its end, or cancels it when its pass must stop."""
    return asyncio.run(_with_own_thread(handler, attempt, value))


async def _with_own_thread(handler: Callable[[AsyncContext, Any], Awaitable[Any]], attempt: Attempt, value: Any) -> Any:
    """The thread for synchronous code is ours, so that a pass may itself run inside somebody's `sync_to_async`."""
    async with ThreadSensitiveContext(executor=helper()):
        await sync_to_async(connection.close_if_unusable_or_obsolete)()
        try:
            return await _watched(handler, attempt, value)
        finally:
            await _stop_what_is_left()


async def _watched(handler: Callable[[AsyncContext, Any], Awaitable[Any]], attempt: Attempt, value: Any) -> Any:
    calls: Tasks = set()
    task = asyncio.ensure_future(handler(AsyncContext(attempt, calls), value))
    await _ended({task}, calls, attempt)
    while calls:
        # What the handler did not wait for has its effect all the same, and its record before any outcome.
        await _ended(set(calls), calls, attempt)
    if task.cancelled():
        raise HandlerCancelled
    return task.result()


async def _ended(tasks: Tasks, calls: Tasks, attempt: Attempt) -> None:
    """Waits for the tasks, or cancels the whole body when its pass must stop."""
    while (await asyncio.wait(tasks, timeout=LOOK))[1]:
        try:
            await sync_to_async(attempt.look)()
        except BaseException:
            # The lease is given back only after the body has really stopped.
            body = tasks | calls
            for task in body:
                task.cancel()
            await asyncio.wait(body)
            raise


async def _stop_what_is_left() -> None:
    """Ends the tasks that the handler left behind: they are part of its body."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)


class _OfThisThread(threading.local):
    """The executor of each thread that runs passes; a forked child makes its own."""

    pid = 0
    executor: ThreadPoolExecutor | None = None


_own = _OfThisThread()


def _executor() -> ThreadPoolExecutor:
    if _own.executor is None or _own.pid != os.getpid():
        _own.executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wakeful-async")
        _own.pid = os.getpid()
    return _own.executor


helper: Callable[[], ThreadPoolExecutor] = _executor
"""Where synchronous code of this thread's coroutine handlers runs; the test kit puts its own here."""


def stop() -> None:
    """Ends the thread that this thread's coroutine handlers use, and its connection (for tests)."""
    if _own.executor is not None and _own.pid == os.getpid():
        _own.executor.submit(connections.close_all).result()
        _own.executor.shutdown()
    _own.executor = None
