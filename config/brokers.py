"""What each kind of broker needs, so that a silent one holds nobody and a lost message is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kombu.transport import TRANSPORT_ALIASES

from config import embedded

# kombu's own, with whole messages.
TRANSPORT_ALIASES["filesystem"] = "config.filesystem_broker:Transport"

ANSWER_SECONDS = 0.8
"""How long one answer of the broker may take.

A publisher whose broker falls silent waits for three of them (for the message, and for two tries to
connect again), and has to be free after 2.5 seconds.
"""

PUBLISH_RETRY_POLICY: dict[str, float] = {
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0.05,
    "interval_max": 0.05,
}


def is_embedded(url: str) -> bool:
    """Tell whether the broker is a folder of this machine."""
    return urlsplit(url).scheme == "filesystem"


def transport_options(url: str, *, visibility_timeout: int, folder: Path) -> dict[str, Any]:
    """Return the transport options for the broker at `url`.

    `visibility_timeout`, in seconds, is for Redis; `folder` for the filesystem.
    """
    match urlsplit(url).scheme:
        case "redis" | "rediss":
            return {
                "visibility_timeout": visibility_timeout,
                # Look for abandoned messages on every round (10 s); the default is every tenth.
                "unacked_restore_throttle": 1,
                "socket_timeout": ANSWER_SECONDS,
                "socket_connect_timeout": ANSWER_SECONDS,
                "socket_keepalive": True,
                # The publish policy above is the only one that tries again.
                "retry_on_timeout": False,
            }
        case "amqp" | "amqps" | "pyamqp":
            return {
                # A publish returns when RabbitMQ has the message, or raises.
                "confirm_publish": True,
                "read_timeout": ANSWER_SECONDS,
                "write_timeout": ANSWER_SECONDS,
            }
        case "filesystem":
            return embedded.broker_folders(folder)
        case _:
            return {}
