"""The settings dictionary `AGENTS`: keys, defaults, and what must hold between values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from maintenance.settings_schema import (
    Problem,
    dotted_path,
    integer,
    milliseconds,
    optional_milliseconds,
    optional_path,
    settings_getter,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsSettings:
    """Durations are `timedelta`s whose keys end in a unit: `ABORT_POLL_MS` sets `abort_poll`."""

    max_queue_depth: int = integer(256, low=1, high=100_000)
    """Unsettled submissions that one thread may hold."""
    max_input_bytes: int = integer(1_048_576, low=1, high=2_000_000)
    """Size of one submission's input as canonical JSON."""
    max_step_result_bytes: int = integer(1_048_576, low=1, high=2_000_000)
    """Size of the result of one durable step or tool call as canonical JSON."""
    max_tool_calls: int = integer(1_000, low=1, high=1_000_000)
    """Tool calls of one run, each further try counted; a restart refills nothing."""

    retry_budget: int = integer(10, low=1, high=1_000)
    """Attempts of one submission that may end without recorded progress."""
    retry_backoff_base: timedelta = milliseconds(1_000, low=1, high=3_600_000)
    retry_backoff_cap: timedelta = milliseconds(60_000, low=1, high=24 * 60 * 60 * 1_000)
    resume_within: timedelta | None = optional_milliseconds(low=3_600_000, high=366 * 24 * 60 * 60 * 1_000)
    """A run that was interrupted longer ago is not gone on with by itself: its thread is parked for a person.

    From an hour on, so that no attempt that died after a long run counts as old. `None`: whatever its age.
    """

    settlement_poll: timedelta = milliseconds(500, low=5, high=60_000)
    """How often a waiter looks for a settlement where no notification reaches it."""
    abort_poll: timedelta = milliseconds(500, low=5, high=60_000)
    """How often a running attempt looks whether it was aborted."""

    log_page: int = integer(256, low=1, high=100_000)
    """Records that a reader gets who asks for no number."""
    max_log_page: int = integer(1_024, low=1, high=100_000)
    max_batch_records: int = integer(256, low=1, high=10_000)
    """Records that one atomic append may hold."""

    authorizer: str = dotted_path("agents.operations.authorize.DjangoPermissions")
    tool_authorizer: str | None = optional_path()
    """Asked before a tool runs: a function of an `agents.api.Intended` that gives `True`, `False` or a `Deny`."""
    approval_policy: str | None = optional_path()
    """Asked before a person is: a function of an `agents.api.Intended` that gives an `Approve`, a `Deny` or `None`."""

    def problems(self) -> list[Problem]:
        """Return the relations between values that do not hold; system checks make them errors."""
        relations = [
            (
                self.retry_backoff_base > self.retry_backoff_cap,
                Problem(
                    id="E001",
                    message="RETRY_BACKOFF_BASE_MS is above RETRY_BACKOFF_CAP_MS.",
                    hint="The cap bounds a delay that starts at the base: raise it.",
                ),
            ),
            (
                self.log_page > self.max_log_page,
                Problem(
                    id="E002",
                    message="LOG_PAGE is above MAX_LOG_PAGE.",
                    hint="A reader who asks for no number would ask for more than is allowed.",
                ),
            ),
        ]
        return [problem for broken, problem in relations if broken]


get_settings = settings_getter("AGENTS", AgentsSettings)
"""Return the settings in force: cached, and read again after Django's `setting_changed`."""
