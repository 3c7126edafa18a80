"""`make up`: the whole system on one machine, for daily development.

Migrates, makes an administrator, then starts web, two workers and beat, and starts again what dies.
Ctrl-C stops them in order; a second Ctrl-C kills them.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event

import django
from django.conf import settings
from django.core.management import call_command

from config import embedded

HOST = "127.0.0.1"
PORT = int(os.environ.get("PORT", "8000"))
WEB_OPTIONS = ("--threads", "4", "--no-control-socket")
ADMIN = "admin"
# Above Celery's soft shutdown, so that workers can let go of their threads by themselves.
PATIENCE_SECONDS = 40


@dataclass(slots=True)
class Child:
    """One supervised process, with a process group of its own: Ctrl-C reaches the launcher alone."""

    name: str
    command: list[str]
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        """Start the process, for the first time or again."""
        self.process = subprocess.Popen([sys.executable, "-m", *self.command], start_new_session=True)

    def kill(self) -> None:
        """Kill the process, and with it whatever it left behind in its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def children() -> list[Child]:
    """Return the processes of a whole system, in the order of their start."""
    celery = ["celery", "-A", "config"]
    worker = [*celery, "worker", "--concurrency", "2", "--without-gossip", "--without-mingle"]
    queues = "maintenance,maintenance.control"
    return [
        Child("web", ["gunicorn", "config.wsgi", "--bind", f"{HOST}:{PORT}", *WEB_OPTIONS]),
        Child("worker one", [*worker, "--queues", queues, "--hostname", "one@%h"]),
        Child("worker two", [*worker, "--queues", queues, "--hostname", "two@%h"]),
        Child("beat", [*celery, "beat", "--pidfile", ""]),
    ]


def supervise(system: list[Child], stop: Event) -> None:
    """Start again every child that ends, until `stop` is set; then stop them all."""
    try:
        while not stop.wait(1):  # also the pause before a child that cannot start is tried again
            for child in system:
                if (code := child.process.poll()) is not None:
                    say(f"{child.name} ended with {code}; starting it again.")
                    child.start()
    finally:
        stop_all(system)


def stop_all(system: list[Child]) -> None:
    """Ask every child to end; kill those that have not after the patience, or at a second Ctrl-C."""
    say("Stopping; Ctrl-C again kills.")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for child in system:
        child.process.terminate()  # not its group: a worker lets its own pool finish
    deadline = time.monotonic() + PATIENCE_SECONDS
    with suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
        for child in system:
            child.process.wait(max(0.1, deadline - time.monotonic()))
    for child in system:
        child.kill()


def make_administrator() -> str:
    """Create the administrator if there is none; return the line that tells how to log in."""
    from django.contrib.auth import get_user_model  # noqa: PLC0415 - needs the app registry

    users = get_user_model().objects
    path = settings.VAR_DIR / "admin_password"
    if not users.filter(username=ADMIN).exists():
        password = embedded.local_secret(path, lambda: secrets.token_urlsafe(12))
        users.create_superuser(username=ADMIN, password=password)
    if path.exists():
        return f"user {ADMIN}, password {path.read_text()}"
    return f"user {ADMIN}, with the password that it was given"


def wait_for_web() -> None:
    """Return when the web process answers, or after ten seconds."""
    for _ in range(100):
        with suppress(OSError), socket.create_connection((HOST, PORT), 1):
            return
        time.sleep(0.1)


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    """Run the system until it is told to stop."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    os.environ.setdefault("WAKEFUL_APPS", "examples.audit")  # something to submit to
    django.setup()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, PORT))
        except OSError:
            raise SystemExit(f"Port {PORT} is taken; say PORT=8001 make up, for one.") from None
    call_command("migrate", interactive=False, verbosity=1)
    login = make_administrator()
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    system = children()
    for child in system:
        child.start()
    wait_for_web()
    say(f"\n  Admin   http://{HOST}:{PORT}/admin/\n  Log in  {login}\n  Ctrl-C stops it all.\n")
    supervise(system, stop)


if __name__ == "__main__":
    main()
