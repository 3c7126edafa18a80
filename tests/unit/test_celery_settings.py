"""Celery is configured as the protocol assumes, whatever its defaults become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import current_app
from django.utils.module_loading import import_string

from config import brokers


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("task_acks_late", True),
        ("task_reject_on_worker_lost", True),
        ("task_acks_on_failure", True),
        ("task_acks_on_timeout", True),
        ("task_ignore_result", True),
        ("task_track_started", False),
        ("task_always_eager", False),
        ("result_backend", None),
        ("accept_content", ["json"]),
        ("task_serializer", "json"),
        ("enable_utc", True),
        ("worker_prefetch_multiplier", 1),
        ("worker_eta_task_limit", 10_000),
        ("broker_connection_retry_on_startup", True),
        ("worker_soft_shutdown_timeout", 30),
        ("task_soft_time_limit", 840),
        ("task_time_limit", 900),
        ("task_default_queue", "maintenance"),
    ],
)
def test_a_setting_has_the_value_that_the_protocol_assumes(setting: str, value: Any) -> None:
    assert current_app.conf[setting] == value


def test_work_and_control_have_a_queue_each() -> None:
    queues = current_app.amqp.queues

    assert set(queues) == {"maintenance", "maintenance.control"}
    assert all(queue.exchange.name == name for name, queue in queues.items())


def test_database_connections_outlive_their_task() -> None:
    fixup: Any = import_string("celery.fixups.django.DjangoWorkerFixup")(current_app)

    assert fixup.db_reuse_max > 10**9


def test_redis_keeps_a_taken_message_for_longer_than_two_hard_limits() -> None:
    options = brokers.transport_options("redis://h/0", visibility_timeout=3600, folder=Path())

    assert options["visibility_timeout"] >= 2 * current_app.conf.task_time_limit
    assert options["unacked_restore_throttle"] == 1


def test_a_publisher_tries_a_second_time_and_no_more() -> None:
    assert current_app.conf.task_publish_retry_policy["max_retries"] == 1


def test_our_tasks_have_no_expiry_and_their_own_late_acknowledgement() -> None:
    current_app.loader.import_default_modules()
    ours = [task for name, task in current_app.tasks.items() if name.startswith("maintenance.")]

    assert ours
    assert all(task.acks_late and task.expires is None and task.ignore_result for task in ours)
