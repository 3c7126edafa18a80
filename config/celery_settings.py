"""Celery's settings: late acknowledgement, one message in hand, bounded publishing, no results."""

from __future__ import annotations

import sys
from typing import Any

from django.conf import settings
from kombu import Exchange, Queue
from kombu.transport import TRANSPORT_ALIASES

from config import embedded
from maintenance.conf import get_settings

_maintenance = get_settings()

TRANSPORT_ALIASES["filesystem"] = "config.filesystem_broker:Transport"

# --- Broker -------------------------------------------------------------------------------------

broker_url: str = settings.BROKER_URL
broker_connection_retry_on_startup = True
# Seconds for one answer of the broker. A publisher whose broker fell silent meets it three times
# (the send, and two tries to connect again), and must be free after 2.5.
_ANSWER = 0.8
broker_connection_timeout = _ANSWER
_scheme = broker_url.partition(":")[0]


def _transport_options() -> dict[str, Any]:
    match _scheme:
        case "redis" | "rediss":
            return {
                "visibility_timeout": settings.BROKER_VISIBILITY_TIMEOUT,
                # Look for abandoned messages on every round (10 s); the default is every tenth.
                "unacked_restore_throttle": 1,
                # Without both, a broker that accepts and never answers holds a publisher for ever.
                "socket_timeout": _ANSWER,
                "socket_connect_timeout": _ANSWER,
                "socket_keepalive": True,
                "retry_on_timeout": False,
            }
        case "amqp" | "amqps" | "pyamqp":
            return {
                # A publish returns when RabbitMQ has the message, or raises.
                "confirm_publish": True,
                "read_timeout": _ANSWER,
                "write_timeout": _ANSWER,
            }
        case "filesystem":
            return embedded.broker_folders(settings.BROKER_FOLDER)
        case _:
            return {}


broker_transport_options = _transport_options()

# --- Queues -------------------------------------------------------------------------------------

# Two, so that a pass of fourteen minutes never stands before a sweep.
task_queues = [
    Queue(name, Exchange(name, type="direct"), routing_key=name)
    for name in (_maintenance.queue, _maintenance.control_queue)
]
task_default_queue = _maintenance.queue
task_default_exchange = _maintenance.queue
task_default_routing_key = _maintenance.queue
task_create_missing_queues = False

# --- Messages -----------------------------------------------------------------------------------

accept_content = ["json"]
task_serializer = "json"
event_serializer = "json"
enable_utc = True
timezone = "UTC"
# One quick second try, and then the sweep: a broker that is down must not hold the caller.
task_publish_retry = True
task_publish_retry_policy = {
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0.05,
    "interval_max": 0.05,
}

# --- Tasks --------------------------------------------------------------------------------------

task_acks_late = True
task_reject_on_worker_lost = True
task_acks_on_failure = True
task_acks_on_timeout = True
task_ignore_result = True
task_store_errors_even_if_ignored = False
task_track_started = False
task_soft_time_limit = _maintenance.pass_deadline.total_seconds()
task_time_limit = _maintenance.hard_limit.total_seconds()

# --- Workers ------------------------------------------------------------------------------------

worker_prefetch_multiplier = 1
# Messages with an ETA are held in memory until it comes. The horizon bounds how far ahead they are
# handed over, this bounds how many; at the limit a worker takes no new message, so it is generous.
worker_eta_task_limit = 10_000
# A worker told to stop waits this many seconds for passes to yield before it interrupts them.
worker_soft_shutdown_timeout = 30
worker_enable_soft_shutdown_on_idle = False
worker_hijack_root_logger = False
worker_redirect_stdouts = False
worker_send_task_events = False
worker_cancel_long_running_tasks_on_connection_loss = False
# Bindings for remote control are rewritten by each starting worker; on the filesystem that buys
# nothing, since there is one machine and its supervisor.
worker_enable_remote_control = _scheme != "filesystem"

# Unless this is set, Django's fixup closes the database connection around every task. It counts
# tasks; ours look first whether the connection is still usable, so that it need not be renewed.
CELERY_DB_REUSE_MAX = sys.maxsize

# --- Beat ---------------------------------------------------------------------------------------

beat_scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
