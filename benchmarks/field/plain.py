"""Contestant (a): plain Celery as a careful team sets it up. One message for each job.

Late acknowledgement, a job of a lost worker is given to another one, connections are kept between tasks, prefetch
as Celery has it. The row lock of the entity keeps two jobs of one entity apart; in which order they run is up to
the broker, and Celery promises none.
"""

from __future__ import annotations

import os
import sys

from celery import Celery
from django.db import connection, transaction

QUEUE = "plain"

app = Celery("plain", broker=os.environ.get("BROKER_URL"))
app.conf.update(
    # As the project's own app has it: a broker that falls silent must not hold a publisher for ever.
    broker_transport_options={
        "visibility_timeout": 3_600,
        "socket_timeout": 0.8,
        "socket_connect_timeout": 0.8,
        "socket_keepalive": True,
    },
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    task_default_queue=QUEUE,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    CELERY_DB_REUSE_MAX=sys.maxsize,
)


_LOCK = "SELECT name FROM wakeful_benchmarks_entity WHERE name = %s FOR UPDATE"
_APPEND = "INSERT INTO wakeful_benchmarks_record (entity, number) VALUES (%s, %s)"


@app.task(name="bench.append")
def append(entity: str, number: int) -> None:
    """One job: a row, in a transaction, while nobody else appends to that entity."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_LOCK, [entity])
        cursor.execute(_APPEND, [entity, number])
