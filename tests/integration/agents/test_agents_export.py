"""`export`: a whole log as JSON lines, from which its chain can be computed again (F35; Q-13)."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
import rfc8785
from asgiref.sync import async_to_sync

from agents import api, log
from agents.errors import UnknownThread
from agents.models import LogRecord
from agents.models.thread import EMPTY_DIGEST
from tests.agents_kit import agents_database, run
from tests.statements import counted_statements

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_django import Settings

    from tests.integration.agents.conftest import Declare

pytestmark = agents_database


@pytest.fixture(autouse=True)
def _thread(declare: Declare) -> None:
    """A thread with three settled submissions and two batches of more than one record."""

    def handler(ctx: api.Context, given: Any) -> Any:
        ctx.step("ä", lambda: {"n": 1e21, "text": "line\nbreak"})
        return [given, *ctx.followups()]

    declare("worker", handler)
    for given in (1, 2, 3):
        api.submit("t", "worker", given)
    run()


def lines() -> list[Any]:
    return [json.loads(line) for line in api.export("t")]


def test_an_export_has_a_versioned_header_every_record_and_an_end() -> None:
    header, *body, end = lines()
    tail = log.tail_of("t")
    assert header.pop("at").endswith("Z")
    assert header == {
        "kind": "header",
        "format": "wakeful-log",
        "v": 1,
        "thread": "t",
        "records": tail.sequence,
        "digest": tail.digest,
    }
    assert end == {"kind": "end", "records": tail.sequence, "digest": tail.digest}
    records = [line for line in body if line["kind"] == "record"]
    assert [line["sequence"] for line in records] == list(range(1, tail.sequence + 1))
    texts = list(LogRecord.objects.order_by("sequence").values_list("text", flat=True))
    assert [rfc8785.dumps(line["record"]).decode() for line in records] == texts


def test_f35_whoever_holds_the_file_can_compute_the_chain() -> None:
    """With nothing but SHA-256 and RFC 8785."""
    header, *body, _ = lines()
    digest, open_records, batch = EMPTY_DIGEST, [], None
    for line in [*body, {"kind": "batch"}]:
        if line["kind"] == "record":
            open_records.append(line["record"])
            continue
        if batch is not None:
            assert batch["previous_digest"] == digest
            assert batch["last"] - batch["first"] + 1 == len(open_records)
            digest = chained(digest, batch, open_records)
            assert digest == batch["digest"]
        batch, open_records = line, []
    assert digest == header["digest"]


def chained(previous: str, batch: dict[str, Any], records: Iterable[Any]) -> str:
    text = rfc8785.dumps(
        {
            "batch": batch["batch"],
            "epoch": batch["epoch"],
            "previous": previous,
            "producer": batch["producer"],
            "records": list(records),
        }
    )
    return hashlib.sha256(text).hexdigest()


def test_a_line_holds_no_line_break() -> None:
    assert all("\n" not in line for line in api.export("t"))


def test_an_unknown_thread_is_told_at_once() -> None:
    with pytest.raises(UnknownThread):
        api.export("nowhere")


def test_what_comes_after_the_call_is_not_exported() -> None:
    exported = api.export("t")
    header = json.loads(next(exported))
    api.submit("t", "worker", 4)
    run()
    rest = [json.loads(line) for line in exported]
    assert rest[-1]["records"] == header["records"]
    assert sum(line["kind"] == "record" for line in rest) == header["records"]


def test_a_long_log_is_read_in_pages_as_it_is_asked_for(settings: Settings) -> None:
    settings.AGENTS = {"MAX_LOG_PAGE": 2, "LOG_PAGE": 2}
    exported = api.export("t")
    with counted_statements() as statements:
        assert len([next(exported) for _ in range(3)]) == 3
    assert len([sql for sql in statements.sql if "logrecord" in sql]) == 1
    assert sum(json.loads(line)["kind"] == "record" for line in exported) == log.tail_of("t").sequence - 1


def test_the_asynchronous_export_gives_the_same_lines() -> None:
    async def collected() -> list[Any]:
        return [json.loads(line) async for line in api.aexport("t")]

    assert async_to_sync(collected)()[1:] == lines()[1:]
