"""Spans of one test, collected by the SDK that a host would use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from maintenance import spans


class Collected:
    """What was collected so far, each span when it has ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of that name, in the order in which they ended."""
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only span of that name."""
        (span,) = self.named(name)
        return span


@contextmanager
def collected_spans() -> Iterator[Collected]:
    """Collects the spans of this process while the block runs."""
    collected = Collected()
    with spans.collected_by(collected.provider):
        yield collected


def context_of(span: ReadableSpan) -> SpanContext:
    """The ids of the span."""
    context = span.get_span_context()
    assert context is not None
    return context


def told(span: ReadableSpan) -> dict[str, Any]:
    """The span's own attributes, without their common prefix."""
    attributes: Mapping[str, Any] = span.attributes or {}
    return {name.removeprefix("wakeful."): value for name, value in attributes.items()}
