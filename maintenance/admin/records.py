"""What happened: passes, operator actions, mutations in flight, workers."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.utils.safestring import SafeString

from maintenance.admin.display import moment, owner_words, report, state, thread_link
from maintenance.admin.filters import ActionFilter, OutcomeFilter, PhaseFilter
from maintenance.admin.readonly import ReadOnlyAdmin, looked_at
from maintenance.failover import EVERY_THREAD
from maintenance.models import MutationLease, OperatorAction, PassRun, WorkerHeartbeat
from maintenance.status import ALIVE
from maintenance.wording import spoken_precisely


class OfThreadAdmin(ReadOnlyAdmin):
    """Rows that name a thread; listed newest first, looked up by the thread's whole id."""

    ordering = ("-id",)
    search_fields: ClassVar[tuple[str, ...]] = ("thread_id__exact",)
    search_help_text = "A whole thread id."

    @admin.display(description="thread")
    def thread(self, obj: Any) -> SafeString | str:
        return "every thread" if obj.thread_id == EVERY_THREAD else thread_link(obj.thread_id)


@admin.register(PassRun)
class PassRunAdmin(OfThreadAdmin):
    """The history of passes."""

    list_display = ("id", "thread", "result", "phase", "trigger", "settled", "recovered", "lateness", "took", "ended")
    list_filter = (OutcomeFilter, PhaseFilter)
    fields = (
        "thread",
        "result",
        "phase",
        "trigger",
        "generation",
        "epoch",
        "settled",
        "recovered",
        "nonterminal",
        "alarm",
        "due_at",
        "started_at",
        "finished_at",
        "lateness",
        "took",
        "process",
        "error",
    )
    readonly_fields = ("thread", "result", "lateness", "took", "process")

    @admin.display(description="outcome")
    def result(self, run: PassRun) -> SafeString:
        return state(run.outcome)

    @admin.display(description="late by")
    def lateness(self, run: PassRun) -> str:
        if run.due_at is None or run.started_at <= run.due_at:
            return "–"
        return spoken_precisely(run.started_at - run.due_at)

    @admin.display(description="took")
    def took(self, run: PassRun) -> str:
        return spoken_precisely(run.finished_at - run.started_at)

    @admin.display(description="ended")
    def ended(self, run: PassRun) -> SafeString | str:
        return moment(run.finished_at, looked_at(run))

    @admin.display(description="process")
    def process(self, run: PassRun) -> SafeString | str:
        return owner_words(run.owner)


@admin.register(OperatorAction)
class OperatorActionAdmin(OfThreadAdmin):
    """Who did what to which thread, and why. Append-only."""

    list_display = ("id", "thread", "action", "actor", "reason", "done")
    list_filter = (ActionFilter,)
    search_fields = ("thread_id__exact", "actor__exact")
    search_help_text = "A whole thread id or a whole actor name."
    fields = ("thread", "action", "actor", "reason", "created_at", "was", "became")
    readonly_fields = ("thread", "was", "became")

    @admin.display(description="done")
    def done(self, action: OperatorAction) -> SafeString | str:
        return moment(action.created_at, looked_at(action))

    @admin.display(description="before")
    def was(self, action: OperatorAction) -> SafeString | str:
        return report(action.before)

    @admin.display(description="after")
    def became(self, action: OperatorAction) -> SafeString | str:
        return report(action.after)


@admin.register(MutationLease)
class MutationLeaseAdmin(OfThreadAdmin):
    """Pre-armed mutations in flight; while one lives, no pass acknowledges its thread."""

    list_display = ("label", "thread", "generation", "started", "expires", "process")
    ordering = ("expires_at",)
    fields = ("label", "thread", "generation", "token", "started_at", "expires_at", "process")
    readonly_fields = ("thread", "process")

    @admin.display(description="started")
    def started(self, lease: MutationLease) -> SafeString | str:
        return moment(lease.started_at, looked_at(lease))

    @admin.display(description="expires")
    def expires(self, lease: MutationLease) -> SafeString | str:
        return moment(lease.expires_at, looked_at(lease))

    @admin.display(description="process")
    def process(self, lease: MutationLease) -> SafeString | str:
        return owner_words(lease.owner)


@admin.register(WorkerHeartbeat)
class WorkerHeartbeatAdmin(ReadOnlyAdmin):
    """When each worker was last seen."""

    list_display = ("worker", "alive", "seen", "started")
    ordering = ("-seen_at",)
    fields = ("worker", "alive", "seen_at", "started_at")
    readonly_fields = ("alive",)

    @admin.display(description="alive", boolean=True)
    def alive(self, heartbeat: WorkerHeartbeat) -> bool:
        return heartbeat.seen_at >= looked_at(heartbeat) - ALIVE

    @admin.display(description="last seen")
    def seen(self, heartbeat: WorkerHeartbeat) -> SafeString | str:
        return moment(heartbeat.seen_at, looked_at(heartbeat))

    @admin.display(description="started")
    def started(self, heartbeat: WorkerHeartbeat) -> SafeString | str:
        return moment(heartbeat.started_at, looked_at(heartbeat))
