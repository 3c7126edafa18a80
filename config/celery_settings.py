"""Celery's settings: late acknowledgement, one message in hand, bounded publishing, no results."""

from __future__ import annotations

import sys

from django.conf import settings
from kombu import Exchange, Queue

from config import brokers
from maintenance.conf import get_settings

_maintenance = get_settings()

# --- Broker -------------------------------------------------------------------------------------

broker_url: str = settings.BROKER_URL
broker_connection_retry_on_startup = True
broker_connection_timeout = brokers.ANSWER_SECONDS
broker_transport_options = brokers.transport_options(
    broker_url,
    visibility_timeout=settings.BROKER_VISIBILITY_TIMEOUT,
    folder=settings.BROKER_FOLDER,
)
# One quick second try, and then the sweep: a broker that is down must not hold the caller.
task_publish_retry = True
task_publish_retry_policy = brokers.PUBLISH_RETRY_POLICY

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
# Where the pool is not driven by the event loop (the filesystem broker), a killed child keeps its place for so
# many seconds. A result that arrives later than that would only bring a second, refused delivery.
worker_lost_wait = 1.0
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
worker_enable_remote_control = not brokers.is_embedded(broker_url)

# Unless this is set, Django's fixup closes the database connection around every task. It counts
# tasks; ours look first whether the connection is still usable, so that it need not be renewed.
CELERY_DB_REUSE_MAX = sys.maxsize

# --- Beat ---------------------------------------------------------------------------------------

beat_scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
