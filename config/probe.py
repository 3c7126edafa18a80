"""`python -m config.probe URL…`: exit with 1, naming them, unless every service accepts connections."""

from __future__ import annotations

import socket
import sys
from urllib.parse import urlsplit

DEFAULT_PORTS = {"postgres": 5432, "postgresql": 5432, "redis": 6379, "amqp": 5672}
TIMEOUT_SECONDS = 5


def problem(url: str) -> str | None:
    """Say why the service of `url` cannot be reached, or return None if it can."""
    parts = urlsplit(url)
    address = (parts.hostname or "localhost", parts.port or DEFAULT_PORTS.get(parts.scheme, 0))
    try:
        socket.create_connection(address, TIMEOUT_SECONDS).close()
    except OSError as error:
        return f"No {parts.scheme} service at {address[0]}:{address[1]}: {error}"
    return None


if __name__ == "__main__":
    problems = [found for url in sys.argv[1:] if (found := problem(url))]
    sys.exit("\n".join(problems) or None)
