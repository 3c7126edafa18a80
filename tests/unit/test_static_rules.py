"""Rules that hold for the source as a whole (L-47, V-03, S-05; field reports F10 and H2)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from celery import Celery
from prometheus_client import REGISTRY

import agents
import maintenance
from maintenance import dispatch, metrics, tasks

PACKAGE = Path(maintenance.__file__).parent
SOURCES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))

TASKS = [task for task in vars(tasks).values() if hasattr(task, "apply_async")]

READS_A_WALL_CLOCK = {
    "clock.py",
    "doctor/database.py",  # compares the two clocks: that is its finding
    "testing.py",  # the kit, which starts a still clock somewhere
}


def calls(source: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call in a file with the dotted name of what is called, as it is written."""
    for node in ast.walk(ast.parse((PACKAGE / source).read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def imports(source: str) -> Iterator[str]:
    """Every dotted name that a file imports."""
    for node in ast.walk(ast.parse((PACKAGE / source).read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize("source", SOURCES)
def test_v03_the_time_is_read_from_the_one_clock(source: str) -> None:
    """Only `clock.py` asks what time it is; monotonic time measures durations and is not asked for a date."""
    asked = {"time.time", "time.time_ns", "timezone.now", "datetime.now", "datetime.utcnow", "datetime.today"}
    reads = {name for name, _ in calls(source) if name in asked or name.endswith((".date.today", ".datetime.now"))}

    assert not reads or source in READS_A_WALL_CLOCK


@pytest.mark.parametrize("source", SOURCES)
def test_v03_chance_is_drawn_where_tests_can_fix_it(source: str) -> None:
    drawn = [name for name, _ in calls(source) if name.startswith("random.")]

    assert not drawn or source == "sweeper.py", "only the phase of a worker's timer is not injected"


@pytest.mark.parametrize("source", SOURCES)
def test_l47_nothing_uses_what_the_row_does_better(source: str) -> None:
    """Celery's retry, revokes and results are volatile; pickle runs what a broker says."""
    last_names = {name.rpartition(".")[2] for name, _ in calls(source)}

    assert last_names & {"retry", "revoke", "AsyncResult"} == set()
    assert {name.partition(".")[0] for name in imports(source)} & {"pickle", "marshal", "shelve", "dill"} == set()


def test_l47_no_hint_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, object] = {}
    monkeypatch.setattr(tasks.run_pass, "apply_async", lambda **options: sent.update(options))

    dispatch.send(dispatch.Hint(thread_id="t", seq=1))

    assert "expires" not in sent
    assert tasks.run_pass.expires is None


def test_l47_a_publish_is_tried_again_once_at_most_and_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, object] = {}
    monkeypatch.setattr(tasks.run_pass, "apply_async", lambda **options: sent.update(options))

    dispatch.send(dispatch.Hint(thread_id="t", seq=1))

    assert sent["retry"] is True
    assert sent["retry_policy"] == {
        "max_retries": 1,
        "interval_start": 0,
        "interval_step": 0.05,
        "interval_max": 0.05,
    }


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_l47_every_task_leaves_retries_and_results_to_the_row(task: object) -> None:
    options = {name: getattr(task, name) for name in ("acks_late", "reject_on_worker_lost", "ignore_result")}

    assert options == {"acks_late": True, "reject_on_worker_lost": True, "ignore_result": True}
    assert getattr(task, "autoretry_for", None) is None
    assert getattr(task, "serializer", "") == "json"


def test_l47_the_app_keeps_no_results_and_takes_json_alone(celery_app: Celery) -> None:
    conf = celery_app.conf

    assert not conf.result_backend
    assert conf.accept_content == ["json"]
    assert {conf.task_serializer, conf.event_serializer} == {"json"}


def test_j6_the_names_of_the_tasks_are_a_contract() -> None:
    assert {task.name for task in TASKS} == {
        "maintenance.run_pass",
        "maintenance.sweep",
        "maintenance.ensure_audit",
        "maintenance.prune",
    }


@pytest.mark.parametrize("source", SOURCES)
def test_f10_no_lock_outlives_its_transaction(source: str) -> None:
    text = (PACKAGE / source).read_text()

    assert "pg_advisory" not in text
    assert "pg_try_advisory" not in text


@pytest.mark.parametrize("app", [maintenance, agents], ids=lambda app: app.__name__)
def test_f11_nothing_reads_through_a_cursor_that_a_pooler_would_lose(app: ModuleType) -> None:
    """Django's `iterator()` opens a server-side cursor; without a transaction around it its session may change."""
    found = [str(path) for path in Path(app.__file__ or "").parent.rglob("*.py") if ".iterator(" in path.read_text()]

    assert found == []


def test_s05_no_label_of_a_metric_can_hold_an_id() -> None:
    ours = [name for name, value in vars(metrics).items() if hasattr(value, "_labelnames")]
    labels = {label for name in ours for label in getattr(metrics, name)._labelnames}

    assert labels == {"outcome", "mode"}
    assert "wakeful_deliveries" in {family.name for family in REGISTRY.collect()}
