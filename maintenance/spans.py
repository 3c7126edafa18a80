"""Spans of OpenTelemetry around what maintenance and agents do, for a host that collects them.

Its API is an optional extra, the SDK and what it exports to are the host's. Without a provider each place costs a look
at a variable. Attributes are ids, counts and outcomes: never a payload, never the text of a foreign error. A provider
that fails loses its span; what the span watches goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import structlog

from maintenance.errors import INTERRUPTIONS, kind_of

try:
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    INSTALLED = False
else:
    INSTALLED = True

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Tracer, TracerProvider
    from opentelemetry.trace import Span as Recorded

log = structlog.get_logger("wakeful.maintenance")

Value = str | int | float | bool | Sequence[str] | None

NAME = "wakeful"
TRACEPARENT = "traceparent"
LONGEST_TRACE = 200
"""Characters of a trace context in a message; W3C's has 55, and later versions may have more."""
LOOK_SECONDS = 1.0
"""How long it is believed that the host has no provider; asking costs microseconds."""

_tracer: Tracer | None = None
_look_at = 0.0


class Span:
    """A span that is not kept: what every place gets while nobody collects any."""

    __slots__ = ()
    is_kept = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Ends it; an exception that leaves it makes it an error, with its kind and without its text."""

    def note(self, **attributes: Value) -> None:
        """Adds attributes, each under `wakeful.`; `None` adds nothing."""

    def fail(self, kind: str) -> None:
        """Marks it as an error."""


_NOT_KEPT = Span()


class _Kept(Span):
    """A span of the host's provider, current while it is open."""

    __slots__ = ("_recorded", "_token")
    is_kept = True

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded

    def __enter__(self) -> Self:
        self._token = context.attach(trace.set_span_in_context(self._recorded))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        context.detach(self._token)
        if isinstance(error, Exception):
            self.fail(kind_of(error))
        with _harmless():
            self._recorded.end()

    def note(self, **attributes: Value) -> None:
        with _harmless():
            self._recorded.set_attributes(_named(attributes))

    def fail(self, kind: str) -> None:
        with _harmless():
            self._recorded.set_status(trace.StatusCode.ERROR, kind)


class _Pass(_Kept):
    """The span of a pass, to which whoever knows more of the pass may add."""

    __slots__ = ("_outer",)

    def __enter__(self) -> Self:
        self._outer = _of_pass.set(self)
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _of_pass.reset(self._outer)
        super().__exit__(kind, error, at)


_of_pass: ContextVar[Span] = ContextVar("wakeful_pass", default=_NOT_KEPT)


def span(name: str, *, link: object = None, **attributes: Value) -> Span:
    """A span around the block that enters it. `link`: the trace context of what caused it, which is not its parent."""
    tracer = _current()
    return _NOT_KEPT if tracer is None else _opened(_Kept, tracer, name, link, attributes)


def of_pass(*, link: object = None, **attributes: Value) -> Span:
    """The span of a pass, and of a delivery that comes to none."""
    tracer = _current()
    return _NOT_KEPT if tracer is None else _opened(_Pass, tracer, "maintenance.pass", link, attributes)


def note_on_pass(**attributes: Value) -> None:
    """Adds to the span of the pass that runs here, if there is one."""
    if _tracer is not None:
        _of_pass.get().note(**attributes)


def _opened(kind: type[_Kept], tracer: Tracer, name: str, link: object, attributes: dict[str, Value]) -> Span:
    try:
        return kind(tracer.start_span(name, attributes=_named(attributes), links=_links(link)))
    except INTERRUPTIONS:
        raise
    except Exception as error:  # noqa: BLE001 - telemetry never fails what it watches
        log.warning("span.lost", kind=kind_of(error))
        return _NOT_KEPT


def here() -> str | None:
    """The trace context of the current span, to travel with a message; `None` if there is none."""
    if _current() is None:
        return None
    carrier: dict[str, str] = {}
    with _harmless():
        TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(TRACEPARENT)


@contextmanager
def collected_by(provider: TracerProvider) -> Iterator[None]:
    """Gives the spans of this process to another provider than the host's, for a test."""
    global _tracer  # noqa: PLW0603 - one provider per process, as in the API
    before, _tracer = _tracer, provider.get_tracer(NAME)
    try:
        yield
    finally:
        _tracer = before


def _current() -> Tracer | None:
    """The tracer of the host's provider, as soon as it has one."""
    global _tracer, _look_at  # noqa: PLW0603 - see above
    if _tracer is None and INSTALLED and (now := time.monotonic()) >= _look_at:
        _look_at = now + LOOK_SECONDS
        if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            _tracer = trace.get_tracer(NAME)
    return _tracer


def _named(attributes: dict[str, Value]) -> dict[str, Any]:
    return {f"wakeful.{name}": value for name, value in attributes.items() if value is not None}


def _links(link: object) -> list[Link]:
    if not isinstance(link, str) or len(link) > LONGEST_TRACE:
        return []
    cause = trace.get_current_span(TraceContextTextMapPropagator().extract({TRACEPARENT: link}, context.Context()))
    return [trace.Link(cause.get_span_context())] if cause.get_span_context().is_valid else []


@contextmanager
def _harmless() -> Iterator[None]:
    """Keeps a provider's failure from the work; an interruption is not its failure."""
    try:
        yield
    except INTERRUPTIONS:
        raise
    except Exception as error:  # noqa: BLE001 - telemetry never fails what it watches
        log.warning("span.lost", kind=kind_of(error))
