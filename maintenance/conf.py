"""The settings dictionary `MAINTENANCE`: keys, defaults, and what must hold between values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import ceil

from maintenance.settings_schema import (
    Problem,
    boolean,
    days,
    dotted_path,
    dotted_paths,
    integer,
    milliseconds,
    optional_integer,
    settings_getter,
    text,
)

MILLISECOND = timedelta(milliseconds=1)

DAY_MS = 24 * 60 * 60 * 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSettings:
    """Durations are `timedelta`s whose keys end in a unit: `LEASE_TTL_MS` sets `lease_ttl`."""

    alarm_backoff_base: timedelta = milliseconds(100, low=1, high=60_000)
    """First delay of a pass that made no progress; doubled with each further one, up to the cap."""
    alarm_backoff_cap: timedelta = milliseconds(5_000, low=1, high=3_600_000)
    scan_interval: timedelta = milliseconds(1_000, low=1, high=60_000)
    """No dirty thread waits longer than this for its next look, whatever its backoff says."""
    dispatch_horizon: timedelta = milliseconds(60_000, low=1_000, high=3_600_000)
    """Deadlines farther away stay in the database; the broker never holds them."""

    sweep_interval: timedelta = milliseconds(1_000, low=10, high=600_000)
    sweep_batch: int = integer(500, low=1, high=100_000)
    sweep_grace: timedelta = milliseconds(5_000, low=10, high=600_000)
    """How long a hint that was published may be on its way before the sweep publishes it again."""
    sweep_grace_doublings: int = integer(6, low=0, high=30)
    """The grace doubles with each hand-over of one slot, at most this often."""
    ensure_interval: timedelta = milliseconds(60_000, low=100, high=DAY_MS)

    lease_ttl: timedelta = milliseconds(30_000, low=50, high=3_600_000)
    lease_renewal: timedelta = milliseconds(10_000, low=10, high=3_600_000)
    lease_self_cancel: timedelta = milliseconds(24_000, low=20, high=3_600_000)
    """A pass that could not renew for this long on its own clock starts no new durable unit."""
    mutation_lease_ttl: timedelta = milliseconds(60_000, low=50, high=3_600_000)

    failure_backoff_base: timedelta = milliseconds(1_000, low=1, high=3_600_000)
    failure_backoff_cap: timedelta = milliseconds(60_000, low=1, high=DAY_MS)
    quarantine_starts: int = integer(20, low=2, high=1_000)
    """Starts without a finish or recorded progress after which a thread is quarantined."""
    passes_per_hour: int | None = optional_integer(low=1, high=1_000_000)
    """Passes of one thread within an hour after which it is parked for a person. `None`: any number."""

    soft_yield: timedelta = milliseconds(600_000, low=10, high=DAY_MS)
    """When the head attempt is asked to stop at its next safe boundary."""
    pass_deadline: timedelta = milliseconds(840_000, low=20, high=DAY_MS)
    """When the whole pass must stop; also Celery's soft limit."""
    hard_limit: timedelta = milliseconds(900_000, low=1_000, high=DAY_MS)
    """When Celery kills the process."""

    early_tolerance: timedelta = milliseconds(20, low=0, high=1_000)
    """A delivery this much before its deadline counts as on time."""
    early_floor: timedelta = milliseconds(50, low=0, high=10_000)
    """An early delivery is handed back to the broker no sooner than this."""

    in_place: timedelta = milliseconds(2_000, low=0, high=600_000)
    """How long one task may go on with further passes of its thread, without a message."""
    in_place_passes: int = integer(25, low=1, high=10_000)
    pass_history: timedelta = days(14, low=1, high=3_650)
    """How long the history of passes is kept."""

    queue: str = text("maintenance")
    control_queue: str = text("maintenance.control")

    runtime: str = dotted_path("maintenance.ports.InertRuntime")
    ledger: str = dotted_path("maintenance.ports.InertLedger")
    messages: str = dotted_path("maintenance.ports.InertMessageDelivery")
    projection: str = dotted_path("maintenance.ports.InertProjection")
    publication: tuple[str, ...] = dotted_paths()
    """The sinks, in the order in which they are drained."""

    fused: bool = boolean(True)
    """Use the fused statements on PostgreSQL; off, the plain ORM version runs everywhere."""
    test_time_scale: int = integer(1, low=1, high=100_000)
    """Tests that shorten lease, grace and visibility timeout together say here by how much."""

    @property
    def minimum(self) -> timedelta:
        """The least delay of a slot that is not due now: half the base, at least 1 ms."""
        return timedelta(milliseconds=self.minimum_ms)

    @property
    def minimum_ms(self) -> int:
        """`minimum` in whole milliseconds."""
        return max(1, ceil(self.alarm_backoff_base / MILLISECOND / 2))

    def dotted_paths(self) -> dict[str, tuple[str, ...]]:
        """Return every import path by the key that sets it."""
        return {
            "RUNTIME": (self.runtime,),
            "LEDGER": (self.ledger,),
            "MESSAGES": (self.messages,),
            "PROJECTION": (self.projection,),
            "PUBLICATION": self.publication,
        }

    def problems(self) -> list[Problem]:
        """Return the relations between values that do not hold; system checks make them errors."""
        return [problem for broken, problem in self._relations() if broken]

    def _relations(self) -> list[tuple[bool, Problem]]:
        return [*self._delay_relations(), *self._lease_relations(), *self._limit_relations()]

    def _delay_relations(self) -> list[tuple[bool, Problem]]:
        return [
            (
                self.alarm_backoff_base > self.alarm_backoff_cap,
                Problem(
                    id="E010",
                    message="ALARM_BACKOFF_BASE_MS is above ALARM_BACKOFF_CAP_MS.",
                    hint="The cap bounds a delay that starts at the base: raise it.",
                ),
            ),
            (
                self.minimum > self.scan_interval,
                Problem(
                    id="E011",
                    message="Half of ALARM_BACKOFF_BASE_MS is above SCAN_INTERVAL_MS.",
                    hint="No dirty thread waits longer than a scan interval: the delay must fit.",
                ),
            ),
            (
                self.failure_backoff_base > self.failure_backoff_cap,
                Problem(
                    id="E012",
                    message="FAILURE_BACKOFF_BASE_MS is above FAILURE_BACKOFF_CAP_MS.",
                    hint="The cap bounds a delay that starts at the base: raise it.",
                ),
            ),
            (
                self.dispatch_horizon < self.sweep_interval * 2,
                Problem(
                    id="E013",
                    message="DISPATCH_HORIZON_MS is below two of SWEEP_INTERVAL_MS.",
                    hint="The sweep hands near deadlines over: it must look twice within it.",
                ),
            ),
            (
                self.queue == self.control_queue,
                Problem(
                    id="E014",
                    message="QUEUE and CONTROL_QUEUE are the same queue.",
                    hint="A long pass must not block a sweep: name two queues.",
                ),
            ),
        ]

    def _lease_relations(self) -> list[tuple[bool, Problem]]:
        return [
            (
                self.lease_renewal * 2.5 > self.lease_ttl,
                Problem(
                    id="E003",
                    message="LEASE_RENEWAL_MS × 2.5 is above LEASE_TTL_MS.",
                    hint="A live pass must survive one lost renewal: renew more often.",
                ),
            ),
            (
                self.lease_ttl >= self.pass_deadline,
                Problem(
                    id="E015",
                    message="LEASE_TTL_MS is not below PASS_DEADLINE_MS.",
                    hint="A lease that outlives the longest pass finds no dead one.",
                ),
            ),
            (
                not self.lease_renewal < self.lease_self_cancel < self.lease_ttl,
                Problem(
                    id="E016",
                    message="LEASE_SELF_CANCEL_MS is not between renewal and time to live.",
                    hint="A pass that cannot renew must stop before another one may take over.",
                ),
            ),
        ]

    def _limit_relations(self) -> list[tuple[bool, Problem]]:
        return [
            (
                not self.soft_yield < self.pass_deadline,
                Problem(
                    id="E017",
                    message="SOFT_YIELD_MS is not below PASS_DEADLINE_MS.",
                    hint="The attempt is asked to yield before the whole pass must stop.",
                ),
            ),
            (
                not self.pass_deadline < self.hard_limit,
                Problem(
                    id="E004",
                    message="PASS_DEADLINE_MS is not below HARD_LIMIT_MS.",
                    hint="A pass needs time to let go of its thread before its process is killed.",
                ),
            ),
            (
                self.in_place >= self.soft_yield,
                Problem(
                    id="E018",
                    message="IN_PLACE_MS is not below SOFT_YIELD_MS.",
                    hint="Going on in place must end before an attempt would be asked to yield.",
                ),
            ),
        ]


get_settings = settings_getter("MAINTENANCE", MaintenanceSettings)
"""Return the settings in force: cached, and read again after Django's `setting_changed`."""
