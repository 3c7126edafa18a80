"""System checks: configurations that would break a promise, each with a stable id and a hint.

Errors stop `migrate`, `runserver`, and, by `refuse_errors`, workers and beat. What only a
connection to the broker can tell (its eviction policy, say) the command `maintenance doctor` tells.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import packages_distributions
from typing import TYPE_CHECKING, Any

import celery
from celery import Celery, current_app
from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connections, router, transaction
from django.utils.module_loading import import_string
from packaging.version import Version

from maintenance.conf import MaintenanceSettings, get_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

APP_LABELS = ("wakeful_maintenance", "wakeful_agents")

USABLE_CELERY = (Version("5.7"), Version("6"))
"""From the first, below the second: earlier ones mishandle ETAs or Django's connections."""

REDIS = frozenset({"redis", "rediss", "sentinel"})
AMQP = frozenset({"amqp", "amqps", "pyamqp"})
EMBEDDED = frozenset({"filesystem", "memory", "sqla", "sqlalchemy"})

Messages = list[checks.CheckMessage]


def register() -> None:
    """Register the checks with Django; called when the app is ready."""
    for check in (
        check_settings,
        check_ports,
        check_celery_version,
        check_broker,
        check_delivery,
        check_queues,
        check_databases,
        check_distributions,
    ):
        checks.register(check, checks.Tags.compatibility)
    checks.register(check_effective_isolation, checks.Tags.database)


def refuse_errors() -> None:
    """Stop this process with the errors that the checks find, if any.

    Celery runs the checks when a worker starts but does nothing with what they find. `SystemExit`,
    because its signals swallow every other exception.
    """
    found = checks.run_checks(databases=list(connections))
    errors = [message for message in found if message.is_serious()]
    if errors:
        raise SystemExit("\n".join(["Refused to start:", *map(str, errors)]))


def check_settings(**_kwargs: Any) -> Messages:
    """Compare the values of `MAINTENANCE` with one another."""
    try:
        problems = get_settings().problems()
    except ImproperlyConfigured as error:
        return [_error("E000", str(error), "Correct the dictionary MAINTENANCE in the settings.")]
    return [_error(problem.id, problem.message, problem.hint) for problem in problems]


def check_ports(**_kwargs: Any) -> Messages:
    """Import what the settings name by dotted path."""
    configured = _settings()
    if configured is None:
        return []
    found: Messages = []
    for key, paths in configured.dotted_paths().items():
        for path in paths:
            try:
                import_string(path)
            except ImportError as error:
                hint = f"MAINTENANCE[{key!r}] must name a class that can be imported."
                found.append(_error("E026", f"{path} cannot be imported: {error}", hint))
    return found


def check_celery_version(**_kwargs: Any) -> Messages:
    """Name a Celery that the protocol is not proven on."""
    least, beyond = USABLE_CELERY
    if least <= Version(celery.__version__) < beyond:
        return []
    return [
        _error(
            "E024",
            f"Celery {celery.__version__} is not usable.",
            f"Install Celery {least} or newer, below {beyond}.",
        )
    ]


def check_broker(**_kwargs: Any) -> Messages:
    """Compare the broker and its transport options with what the protocol assumes of them."""
    transport = _transport(current_app)
    options = current_app.conf.broker_transport_options or {}
    found: Messages = []
    if transport in REDIS:
        found += _visibility(options)
        found += _timeouts("Redis", options, ("socket_timeout", "socket_connect_timeout"))
    if transport in AMQP:
        found += _timeouts("RabbitMQ", options, ("read_timeout", "write_timeout"))
    vendors = {connections[alias].vendor for alias in _aliases()}
    if transport in EMBEDDED and vendors == {"postgresql"} and not settings.DEBUG:
        found.append(
            _warning(
                "W020",
                f"The broker {transport}:// serves one machine and may lose messages.",
                "Set BROKER_URL to Redis or RabbitMQ in production.",
            )
        )
    if transport in REDIS | AMQP and "sqlite" in vendors:
        found.append(
            _warning(
                "W022",
                "The broker may have workers on several machines, but SQLite lives on one.",
                "Set DATABASE_URL to PostgreSQL.",
            )
        )
    return found


def check_delivery(**_kwargs: Any) -> Messages:
    """Look for Celery settings under which a delivery is lost, doubled or run at the wrong time."""
    conf = current_app.conf
    found: Messages = []
    if early := _acknowledged_early(current_app):
        found.append(
            _error(
                "E007",
                f"Messages are acknowledged before the pass runs: {', '.join(early)}.",
                "Take acks_late=False out of Celery's task_annotations.",
            )
        )
    if not conf.task_acks_late:
        found.append(
            _warning(
                "W007",
                "Celery's task_acks_late is off; Wakeful's own tasks overrule it, yours do not.",
                "Set task_acks_late to True (does your project import its Celery app?).",
            )
        )
    if conf.task_always_eager:
        kind = checks.Warning if settings.DEBUG else checks.Error
        found.append(
            kind(
                "Celery's task_always_eager ignores due times and runs passes inside the caller.",
                hint="Start a worker. Tests run passes directly.",
                id="wakeful_maintenance.W008" if settings.DEBUG else "wakeful_maintenance.E008",
            )
        )
    if conf.result_backend:
        found.append(
            _warning(
                "W009",
                "A Celery result backend is configured.",
                "Wakeful records outcomes in its database and ignores results: leave it out.",
            )
        )
    if not conf.task_reject_on_worker_lost:
        found.append(
            _warning(
                "W027",
                "A pass whose process is killed loses its message.",
                "Set Celery's task_reject_on_worker_lost to True: it comes back without a sweep.",
            )
        )
    if conf.worker_prefetch_multiplier != 1:
        found.append(
            _warning(
                "W029",
                "Workers take more messages than they run: due passes wait behind a long one.",
                "Set Celery's worker_prefetch_multiplier to 1.",
            )
        )
    return found


def check_queues(**_kwargs: Any) -> Messages:
    """See that both queues are declared where Celery does not make queues by itself."""
    configured = _settings()
    if configured is None or current_app.conf.task_create_missing_queues:
        return []
    declared = current_app.amqp.queues
    return [
        _error("E028", f"The queue {name} is not declared.", "Add it to Celery's task_queues.")
        for name in (configured.queue, configured.control_queue)
        if name not in declared
    ]


def check_databases(**_kwargs: Any) -> Messages:
    """See that all models share one database, read committed."""
    aliases = _aliases()
    found: Messages = []
    if len(aliases) > 1:
        found.append(
            _error(
                "E006",
                f"The models of Wakeful use several databases: {', '.join(sorted(aliases))}.",
                "Route both apps to one alias, reads too: one transaction holds work and alarm.",
            )
        )
    for alias in sorted(aliases):
        options = connections[alias].settings_dict
        if connections[alias].vendor == "postgresql" and not _reads_committed(options["OPTIONS"]):
            found.append(_wrong_isolation(alias))
        if options["ATOMIC_REQUESTS"]:
            found.append(
                checks.Info(
                    f"ATOMIC_REQUESTS is on for the database {alias!r}.",
                    hint="A view that uses prearmed_mutation needs `non_atomic_requests`.",
                    id="wakeful_maintenance.I025",
                )
            )
    return found


def check_effective_isolation(*, databases: Sequence[str] | None = None, **_kwargs: Any) -> Messages:
    """Ask PostgreSQL which isolation a transaction gets: a role or database may set it too."""
    found: Messages = []
    for alias in _aliases() & set(databases or ()):
        connection = connections[alias]
        if connection.vendor != "postgresql":
            continue
        try:
            with transaction.atomic(using=alias), connection.cursor() as cursor:
                cursor.execute("SHOW transaction_isolation")
                isolation = cursor.fetchone()
        except OperationalError:
            continue  # a database that is down says nothing about its settings
        if isolation != ("read committed",):
            found.append(_wrong_isolation(alias))
    return found


def check_distributions(**_kwargs: Any) -> Messages:
    """Name a foreign distribution that brings a top-level package of ours."""
    by_package = packages_distributions()
    return [
        _error(
            "E023",
            f"The distribution {distribution} brings another top-level package {package!r}.",
            f"Uninstall it: Python can hold one package {package!r}, and Wakeful's is needed here.",
        )
        for package in ("agents", "maintenance")
        for distribution in sorted(set(by_package.get(package, ())) - {"wakeful"})
    ]


def _visibility(options: dict[str, Any]) -> Messages:
    """Redis delivers again what stays unacknowledged for the visibility timeout."""
    configured = _settings()
    if configured is None:
        return []
    seconds = options.get("visibility_timeout", 3600) * configured.test_time_scale
    hard_limit = max(configured.hard_limit.total_seconds(), current_app.conf.task_time_limit or 0)
    found: Messages = []
    if configured.dispatch_horizon.total_seconds() * 4 > seconds:
        found.append(
            _error(
                "E001",
                "DISPATCH_HORIZON_MS × 4 is above the broker's visibility timeout.",
                "Redis would deliver a waiting alarm again and again: shorten the horizon.",
            )
        )
    if hard_limit * 2 > seconds:
        found.append(
            _error(
                "E002",
                "The hard time limit × 2 is above the broker's visibility timeout.",
                "Redis would deliver a running pass to a second worker: lengthen the timeout.",
            )
        )
    return found


def _timeouts(broker: str, options: dict[str, Any], names: Iterable[str]) -> Messages:
    missing = [name for name in names if not options.get(name)]
    if not missing:
        return []
    return [
        _error(
            "E021",
            f"A {broker} that never answers would hold whoever publishes for ever.",
            f"Set {' and '.join(missing)} in Celery's broker_transport_options, in seconds.",
        )
    ]


def _acknowledged_early(app: Celery) -> list[str]:
    """Name our tasks that are acknowledged on arrival."""
    import_module("maintenance.tasks")  # otherwise only a worker has registered them by now
    return sorted(name for name, task in app.tasks.items() if name.startswith("maintenance.") and not task.acks_late)


def _transport(app: Celery) -> str:
    """Return the scheme of the broker that publishers use; no connection is made."""
    return str(app.connection_for_write().transport_cls)


def _aliases() -> set[str]:
    """Return the databases that any model of ours is read from or written to."""
    models = [
        model for label in APP_LABELS if label in apps.app_configs for model in apps.get_app_config(label).get_models()
    ]
    return {route(model) for model in models for route in (router.db_for_read, router.db_for_write)}


def _reads_committed(options: dict[str, Any]) -> bool:
    level = options.get("isolation_level")
    named = "" if level is None else str(getattr(level, "name", level))
    return named.replace("_", " ").lower() in {"", "read committed"}


def _wrong_isolation(alias: str) -> checks.CheckMessage:
    return _error(
        "E005",
        f"Transactions of the database {alias!r} are not READ COMMITTED.",
        "Row locks wait and then see the newest row only there: leave the isolation level alone.",
    )


def _settings() -> MaintenanceSettings | None:
    """Return the settings, or None where `check_settings` reports that they cannot be read."""
    try:
        return get_settings()
    except ImproperlyConfigured:
        return None


def _error(number: str, message: str, hint: str) -> checks.CheckMessage:
    return checks.Error(message, hint=hint, id=f"wakeful_maintenance.{number}")


def _warning(number: str, message: str, hint: str) -> checks.CheckMessage:
    return checks.Warning(message, hint=hint, id=f"wakeful_maintenance.{number}")
