"""Threads: what each owes, when it is due, who holds it, how its last pass ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from maintenance import operations, status
from maintenance.admin.display import NOTHING, exact_moment, moment, owner_words, report, state
from maintenance.admin.filters import ConditionFilter
from maintenance.admin.readonly import ReadOnlyAdmin, looked_at
from maintenance.admin.reasoned import ReasonedAction, ReasonedActionsAdmin
from maintenance.models import MutationLease, OperatorAction, PassRun, ThreadMaintenance
from maintenance.wording import spoken_precisely

RECENT = 10
"""Passes and operator actions on the page of a thread; a link leads to all of them."""


def _on_thread(perform: Callable[..., bool]) -> Callable[..., bool]:
    def on_thread(row: ThreadMaintenance, **said: Any) -> bool:
        return perform(row.thread_id, **said)

    return on_thread


FORCE_PASS = ReasonedAction(
    name="force_pass",
    label="Force a pass",
    explanation="The deadline moves to now and a worker takes one pass, also of a thread that is paused or in "
    "quarantine; that thread is held back again afterwards. Nothing runs in this web process.",
    perform=_on_thread(operations.force_pass),
    unchanged="left alone: a pass holds the thread and will see what is new",
)
WAKE = ReasonedAction(
    name="wake",
    label="Wake",
    explanation="The next pass becomes due now, also out of a backoff. A thread that owes nothing gets one short "
    "pass that finds so; one that is paused or in quarantine still waits.",
    perform=_on_thread(operations.wake),
    unchanged="left alone: a pass holds the thread and will see what is new",
)
PAUSE = ReasonedAction(
    name="pause",
    label="Pause",
    explanation="No further pass begins until someone resumes the thread; a pass that runs now goes on to its end. "
    "Work is still accepted and kept, and it will be late.",
    perform=_on_thread(operations.pause),
    unchanged="paused already: nothing changed",
    applies=lambda row: row.paused_at is None,
)
RESUME = ReasonedAction(
    name="resume",
    label="Resume",
    explanation="Passes go on, and what is due is handed to a worker at once.",
    perform=_on_thread(operations.resume),
    unchanged="not paused: nothing changed",
    applies=lambda row: row.paused_at is not None,
)
RELEASE = ReasonedAction(
    name="release",
    label="Release from quarantine",
    explanation="The count of passes that began and did not end starts again at zero, and the next pass is due now. "
    "If the cause is still there, the thread will kill workers again until it is back in quarantine.",
    perform=_on_thread(operations.release),
    unchanged="not in quarantine: nothing changed",
    applies=lambda row: row.quarantined_at is not None,
)


@admin.register(ThreadMaintenance)
class ThreadMaintenanceAdmin(ReasonedActionsAdmin, ReadOnlyAdmin):
    """One row for each thread that was ever maintained."""

    reasoned_actions = (FORCE_PASS, WAKE, PAUSE, RESUME, RELEASE)
    change_form_template = "admin/wakeful_maintenance/thread.html"
    list_display = ("thread_id", "state", "lag", "deadline", "lease", "trouble", "outcome")
    list_filter = (ConditionFilter,)
    ordering = ("thread_id",)
    sortable_by = ("thread_id",)
    # A prefix: the primary key's index answers it, case and all.
    search_fields = ("thread_id__startswith",)
    search_help_text = "The beginning of a thread id, in its own case."
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("thread_id", "now_sentence")}),
        ("Deadline", {"fields": ("alarm", "reason", "alarm_seq", "timer", "hand_over")}),
        ("Generations", {"fields": ("dirty", "processed", "nonterminal")}),
        ("Lease", {"fields": ("lease_owner_full", "lease_epoch", "lease_started", "lease_expires")}),
        ("Held back", {"fields": ("paused", "quarantined", "quarantine_reason")}),
        ("Setbacks", {"fields": ("stalls", "failures", "starts_since_finish")}),
        ("Last pass", {"fields": ("outcome", "report", "last_error")}),
    )
    readonly_fields = (
        "now_sentence",
        "alarm",
        "reason",
        "timer",
        "hand_over",
        "lease_owner_full",
        "lease_started",
        "lease_expires",
        "paused",
        "quarantined",
        "outcome",
        "report",
    )

    # --- Permissions ----------------------------------------------------------------------------

    def has_force_pass_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("wakeful_maintenance.force_pass")

    def has_wake_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("wakeful_maintenance.wake_thread")

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("wakeful_maintenance.pause_thread")

    def has_resume_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("wakeful_maintenance.resume_thread")

    def has_release_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("wakeful_maintenance.release_thread")

    # --- Pages ----------------------------------------------------------------------------------

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Earliest deadline first where a condition keeps the list short."""
        return ("alarm_at", "thread_id") if request.GET.get("condition") == "overdue" else self.ordering

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        row = self.get_object(request, unquote(object_id))
        related = {} if row is None else self._related(request, row)
        return super().change_view(request, object_id, form_url, {**related, **(extra_context or {})})

    def _related(self, request: HttpRequest, row: ThreadMaintenance) -> dict[str, Any]:
        thread_id, now = row.thread_id, looked_at(row)
        live = MutationLease.objects.filter(thread_id=thread_id, expires_at__gt=now)
        return {
            "reasoned_actions": self.actions_for(request, row),
            "recent_passes": [_pass_row(run, row) for run in _recent(PassRun.objects.filter(thread_id=thread_id))],
            "recent_actions": [
                (moment(done.created_at, now), done)
                for done in _recent(OperatorAction.objects.filter(thread_id=thread_id))
            ],
            "mutations": [(moment(each.expires_at, now), each) for each in live[:RECENT]],
            "passes_url": _list_url("passrun", thread_id),
            "actions_url": _list_url("operatoraction", thread_id),
        }

    # --- The list -------------------------------------------------------------------------------

    @admin.display(description="state")
    def state(self, row: ThreadMaintenance) -> SafeString:
        return state(status.state_of(row, looked_at(row)))

    @admin.display(description="lag")
    def lag(self, row: ThreadMaintenance) -> SafeString:
        title = f"Generation {row.processed} of {row.dirty} is acknowledged."
        return format_html('<span title="{}">{}</span>', title, row.dirty - row.processed)

    @admin.display(description="deadline")
    def deadline(self, row: ThreadMaintenance) -> SafeString | str:
        now = looked_at(row)
        held = status.state_of(row, now) not in {status.State.DUE, status.State.WAITING}
        return moment(row.alarm_at, now, promised=not held)

    @admin.display(description="lease")
    def lease(self, row: ThreadMaintenance) -> SafeString | str:
        if row.lease_expires_at is None:
            return NOTHING
        return format_html("{}<br>ends {}", owner_words(row.lease_owner), moment(row.lease_expires_at, looked_at(row)))

    @admin.display(description="setbacks")
    def trouble(self, row: ThreadMaintenance) -> str:
        counts = ((row.stalls, "stalled"), (row.failures, "failed"), (row.starts_since_finish, "unended"))
        return ", ".join(f"{count} {word}" for count, word in counts if count) or NOTHING

    @admin.display(description="last outcome")
    def outcome(self, row: ThreadMaintenance) -> SafeString | str:
        return state(row.last_outcome) if row.last_outcome else NOTHING

    # --- The page of a thread -------------------------------------------------------------------

    @admin.display(description="now")
    def now_sentence(self, row: ThreadMaintenance) -> str:
        return status.explain(row, looked_at(row))

    @admin.display(description="deadline")
    def alarm(self, row: ThreadMaintenance) -> SafeString | str:
        return exact_moment(row.alarm_at, looked_at(row))

    @admin.display(description="why then")
    def reason(self, row: ThreadMaintenance) -> str:
        return status.why_armed(row, looked_at(row))

    @admin.display(description="earliest durable timer")
    def timer(self, row: ThreadMaintenance) -> SafeString | str:
        return exact_moment(row.timer_at, looked_at(row))

    @admin.display(description="last hand-over to the broker")
    def hand_over(self, row: ThreadMaintenance) -> SafeString | str:
        if row.hint_at is None:
            return "never"
        which = f"slot {row.hint_seq}, attempt {row.hint_attempts}" if row.hint_seq is not None else "not taken"
        return format_html("{}: {}", exact_moment(row.hint_at, looked_at(row)), which)

    @admin.display(description="owner")
    def lease_owner_full(self, row: ThreadMaintenance) -> SafeString | str:
        return owner_words(row.lease_owner)

    @admin.display(description="taken")
    def lease_started(self, row: ThreadMaintenance) -> SafeString | str:
        return exact_moment(row.lease_started_at, looked_at(row))

    @admin.display(description="ends unless renewed")
    def lease_expires(self, row: ThreadMaintenance) -> SafeString | str:
        return exact_moment(row.lease_expires_at, looked_at(row))

    @admin.display(description="paused")
    def paused(self, row: ThreadMaintenance) -> SafeString | str:
        return exact_moment(row.paused_at, looked_at(row))

    @admin.display(description="in quarantine")
    def quarantined(self, row: ThreadMaintenance) -> SafeString | str:
        return exact_moment(row.quarantined_at, looked_at(row))

    @admin.display(description="report")
    def report(self, row: ThreadMaintenance) -> SafeString | str:
        return report(row.last_report)


def _recent(rows: QuerySet[Any]) -> list[Any]:
    return list(rows.order_by("-id")[:RECENT])


def _pass_row(run: PassRun, row: ThreadMaintenance) -> dict[str, Any]:
    return {
        "run": run,
        "ended": moment(run.finished_at, looked_at(row)),
        "took": spoken_precisely(run.finished_at - run.started_at),
        "outcome": state(run.outcome),
    }


def _list_url(model: str, thread_id: str) -> str:
    url = reverse(f"admin:wakeful_maintenance_{model}_changelist")
    return f"{url}?{urlencode({'thread_id__exact': thread_id})}"
