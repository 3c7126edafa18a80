"""`manage.py agents`: submit, show, verify (issue 2, 6)."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from agents import api
from agents.models import LogRecord, Submission, Thread
from tests.agents_kit import agents_database, run

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.integration.agents.conftest import Declare

pytestmark = agents_database


@pytest.fixture(autouse=True)
def _agents(echo: str) -> None:
    """The command knows the agent `echo`."""


class Ran:
    """What one run of the command said, and its exit code."""

    def __init__(self, *arguments: str) -> None:
        out, err = io.StringIO(), io.StringIO()
        self.code = 0
        try:
            call_command("agents", *arguments, stdout=out, stderr=err)
        except SystemExit as ended:
            self.code = int(str(ended.code))
        self.out, self.err = out.getvalue(), err.getvalue()

    def json_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    return tmp_path / "work.jsonl"


def submit(jsonl: Path, *lines: Any, options: tuple[str, ...] = ()) -> Ran:
    """Submits a file of these lines; what is not a text is written as JSON."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    jsonl.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return Ran("submit", "echo", "--jsonl", str(jsonl), *options)


def test_each_line_of_a_file_becomes_a_submission_in_order(jsonl: Path) -> None:
    ran = submit(jsonl, {"thread": "a", "input": 1}, {"thread": "b", "input": {"n": 2}}, {"thread": "a", "input": None})

    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "3 accepted, 0 replayed, 0 refused\n"
    rows = Submission.objects.order_by("thread_id", "queue_sequence").values_list("thread_id", "input")
    assert list(rows) == [("a", "1"), ("a", "null"), ("b", '{"n":2}')]


def test_bad_lines_are_named_by_number_while_the_good_ones_go_on(jsonl: Path) -> None:
    ran = submit(
        jsonl,
        {"thread": "a", "input": 1},
        "{not json",
        "",
        [1, 2],
        {"input": 1},
        {"thread": "a", "inptu": 1},
        {"thread": "", "input": 1},
        {"thread": "b", "input": 2},
        '{"thread": "c", "input": 9007199254740993}',
    )

    assert ran.code == 1
    assert ran.out == "2 accepted, 0 replayed, 6 refused\n"
    said = ran.err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["line 2", "line 4", "line 5", "line 6", "line 7", "line 9"]
    assert "not JSON" in said[0]
    assert "a JSON object is needed, not list" in said[1]
    assert "'thread' is missing" in said[2]
    assert "'input' is missing, 'inptu' is unknown" in said[3]
    assert "thread_id" in said[4]
    assert "2^53" in said[5]
    assert set(Thread.objects.values_list("pk", flat=True)) == {"a", "b"}


def test_a_field_of_the_input_may_name_the_thread(jsonl: Path) -> None:
    ran = submit(jsonl, {"order": 7, "total": 3}, {"total": 3}, options=("--thread-field", "order"))

    assert ran.code == 1
    assert "line 2: the field 'order' that names the thread is missing" in ran.err
    row = Submission.objects.get()
    assert (row.thread_id, row.input) == ("7", '{"order":7,"total":3}')


def test_a_key_makes_a_line_idempotent(jsonl: Path) -> None:
    line = {"thread": "a", "input": 1, "key": "k"}
    assert submit(jsonl, line).out == "1 accepted, 0 replayed, 0 refused\n"
    assert submit(jsonl, line).out == "0 accepted, 1 replayed, 0 refused\n"
    assert submit(jsonl, {**line, "input": 2}).code == 1


def test_once_a_file_may_be_sent_again_after_its_bad_lines_were_mended(jsonl: Path) -> None:
    good, bad, mended = {"thread": "a", "input": 1}, "{", {"thread": "a", "input": 2}
    assert submit(jsonl, good, bad, options=("--once",)).code == 1
    assert submit(jsonl, good, mended, options=("--once",)).out == "1 accepted, 1 replayed, 0 refused\n"


def test_standard_input_serves_as_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"thread": "a", "input": 1}\n'))
    assert Ran("submit", "echo", "--jsonl", "-").code == 0
    assert Submission.objects.count() == 1


def test_json_gives_a_receipt_for_each_line_and_the_counts(jsonl: Path) -> None:
    ran = submit(jsonl, {"thread": "a", "input": 1}, "{", options=("--json", "--principal", "p"))

    receipt, counts = ran.json_lines()
    row = Submission.objects.get()
    assert receipt == {
        "line": 1,
        "thread": "a",
        "submission": str(row.pk),
        "receipt": f"receipt:{row.pk}",
        "queue_sequence": 1,
        "replayed": False,
    }
    assert counts == {"accepted": 1, "replayed": 0, "refused": 1}
    assert row.principal == "p"


def test_a_line_that_is_not_utf8_is_refused_alone(jsonl: Path) -> None:
    jsonl.write_bytes(b'{"thread": "a", "input": "\xff"}\n{"thread": "b", "input": 1}\n')
    ran = Ran("submit", "echo", "--jsonl", str(jsonl))
    assert ran.code == 1
    assert ran.err.startswith("line 1: ")
    assert Thread.objects.get().pk == "b"


def test_a_limit_is_reported_by_line(jsonl: Path, settings: Settings) -> None:
    settings.AGENTS = {"MAX_QUEUE_DEPTH": 1}
    ran = submit(jsonl, {"thread": "a", "input": 1}, {"thread": "a", "input": 2}, {"thread": "b", "input": 3})
    assert ran.err == "line 2: queue depth: 1 where at most 1 is allowed\n"
    assert ran.code == 1


def test_an_unknown_agent_is_refused_with_those_that_are_known(jsonl: Path) -> None:
    jsonl.write_text("{}")
    ran = Ran("submit", "ecoh", "--jsonl", str(jsonl))
    assert ran.code == 2
    assert "did you mean 'echo'" in ran.err
    assert "Declared here: " in ran.err


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file"):
        Ran("submit", "echo", "--jsonl", str(tmp_path / "none"))


def test_show_tells_the_queue_and_the_log() -> None:
    api.submit("t", "echo", {"n": 1})
    run()
    api.submit("t", "echo", 2)

    said = Ran("show", "t").out

    assert "thread t: 3 records, 1 submissions owed" in said
    assert "#1 echo completed, attempts 1" in said
    assert "#2 echo ready, attempts 0" in said
    assert "submission-settled settlement:" in said


def test_show_gives_json() -> None:
    receipt = api.submit("t", "echo", {"n": 1})
    run()

    shown = json.loads(Ran("show", "t", "--json", "--log", "1").out)

    assert (shown["thread"], shown["records"], shown["owed"]) == ("t", 3, 0)
    assert [row["outcome"] for row in shown["submissions"]] == ["completed"]
    assert [record["payload"]["result"] for record in shown["log"]] == [{"n": 1}]
    assert shown["log"][0]["id"] == f"settlement:{receipt.submission_id}"


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_an_unknown_thread_is_an_error(verb: str) -> None:
    ran = Ran(verb, "nowhere")
    assert ran.code == 2
    assert "there is no thread 'nowhere'" in ran.err


def test_verify_passes_sound_threads_and_fails_with_a_broken_one() -> None:
    for thread in ("a", "b"):
        api.submit(thread, "echo", 1)
    run()
    ran = Ran("verify", "--all", "--settled")
    assert (ran.code, ran.out) == (
        0,
        "ok     a: 1 submissions, 3 records\nok     b: 1 submissions, 3 records\n",
    )

    LogRecord.objects.filter(thread_id="b", sequence=2).delete()
    ran = Ran("verify", "--all")
    assert ran.code == 1
    assert "ok     a" in ran.out
    assert "BROKEN b" in ran.out
    assert "sequence-contiguity: " in ran.out
    assert Ran("verify", "a").code == 0


def test_verify_gives_json_a_line_for_each_thread() -> None:
    api.submit("a", "echo", 1)
    ran = Ran("verify", "--all", "--settled", "--json")
    (report,) = ran.json_lines()
    assert (ran.code, report["thread"], report["ok"]) == (1, "a", False)
    failed = {check["name"]: check["detail"] for check in report["checks"] if check["status"] == "failed"}
    assert failed == {"all-settled": "1 of 1 submissions are not settled"}


def test_verify_needs_to_be_told_what() -> None:
    for arguments in ((), ("a", "--all")):
        with pytest.raises(CommandError, match="name the threads"):
            Ran("verify", *arguments)


def test_a_handler_of_the_users_own_does_the_work_of_a_file(jsonl: Path, declare: Declare) -> None:
    declare("double", lambda ctx, given: ctx.step("double", lambda: given["n"] * 2))
    jsonl.write_text("\n".join(json.dumps({"thread": f"t{n}", "input": {"n": n}}) for n in range(5)))
    assert Ran("submit", "double", "--jsonl", str(jsonl)).code == 0
    run()
    results = [record.payload["result"] for n in range(5) for record in api.progress(f"t{n}", after=3)]
    assert results == [0, 2, 4, 6, 8]
    assert Ran("verify", "--all", "--settled").code == 0
