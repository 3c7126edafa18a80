"""`maintenance status` and `doctor`: facts, one a line."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta

from maintenance import clock, doctor, status
from maintenance.doctor import Level
from maintenance.management.answers import Answer, Exit, unknown_thread
from maintenance.models import ThreadMaintenance
from maintenance.wording import counted, spoken


def tell_all(threshold: timedelta | None) -> Answer:
    """The numbers of all threads."""
    now = clock.now()
    numbers, health = status.numbers(now), status.health(threshold)
    lines = [
        f"Threads       {numbers.threads:,} ({numbers.armed:,} armed, {numbers.dirty:,} dirty)",
        f"Due now       {numbers.due:,}; the next one {_moment(numbers.next_due, now)}",
        f"Overdue       {health.sentence()}",
        f"Running       {numbers.leased:,}; pre-armed mutations in flight: {numbers.mutations_in_flight:,}",
        f"Held back     {numbers.paused:,} paused, {numbers.quarantined:,} in quarantine",
        f"In trouble    {numbers.stalled:,} without progress, {numbers.failing:,} failing",
        f"Last hand-over to the broker: {_moment(numbers.last_hand_over, now)}",
        f"Workers       {numbers.workers:,} alive; last heartbeat {_moment(numbers.last_heartbeat, now)}",
    ]
    return Answer(lines=lines, data={"now": now, **asdict(numbers), "health": _health_data(health)})


def check(threshold: timedelta | None) -> Answer:
    """Exit 1 if something is overdue by more than the threshold."""
    health = status.health(threshold)
    return Answer(
        code=Exit.OK if health.ok else Exit.FAILED, lines=[health.sentence()], data={"health": _health_data(health)}
    )


def tell_one(thread_id: str) -> Answer:
    """One thread: deadline, reason, slot sequence, last hand-over, lease, last pass."""
    row = ThreadMaintenance.objects.filter(pk=thread_id).first()
    if row is None:
        return unknown_thread(thread_id)
    now = clock.now()
    facts = status.facts(row, now)
    lines = [
        f"Thread        {row.thread_id}: {facts['state']}",
        f"              {facts['explanation']}",
        f"Deadline      {_moment(row.alarm_at, now)} (slot sequence {row.alarm_seq})",
        f"Reason        {facts['reason']}",
        f"Handed over   {_hand_over(row, now)}",
        f"Generations   dirty {row.dirty}, processed {row.processed}; {row.nonterminal} unsettled submissions",
        f"Lease         {_lease(row, now)}",
        f"Timer         {_moment(row.timer_at, now)}",
        f"In a row      {row.stalls} without progress, {row.failures} failed, {row.starts_since_finish} without an end",
        f"Last pass     {row.last_outcome or 'none yet'}",
    ]
    if row.last_error:
        lines.append(f"Last error    {row.last_error}")
    return Answer(lines=lines, data=facts)


def examine() -> Answer:
    """Everything that `doctor` finds; exit 1 on errors."""
    findings = doctor.examine()
    errors = [finding for finding in findings if finding.level is Level.ERROR]
    warnings = [finding for finding in findings if finding.level is Level.WARNING]
    lines = []
    for finding in findings:
        lines.append(f"{finding.level.upper():<8} {finding.text} [{finding.id}]")
        if finding.hint:
            lines.append(f"{'':<8} → {finding.hint}")
    lines.append(f"{counted(len(errors), 'error', 'errors')}, {counted(len(warnings), 'warning', 'warnings')}.")
    return Answer(
        code=Exit.FAILED if errors else Exit.OK,
        lines=lines,
        data={"ok": not errors, "findings": [asdict(finding) for finding in findings]},
    )


def _health_data(health: status.Health) -> dict[str, object]:
    return {
        "ok": health.ok,
        "overdue": health.overdue,
        "oldest_seconds": None if health.oldest is None else health.oldest.total_seconds(),
        "oldest_thread": health.oldest_thread,
        "handed_over_not_started": health.handed_over,
        "queue": health.queue,
        "threshold_seconds": health.threshold.total_seconds(),
        "text": health.sentence(),
    }


def _moment(at: datetime | None, now: datetime) -> str:
    if at is None:
        return "none"
    relative = f"in {spoken(at - now)}" if at > now else f"{spoken(now - at)} ago"
    return f"{at.isoformat(sep=' ', timespec='milliseconds')} ({relative})"


def _hand_over(row: ThreadMaintenance, now: datetime) -> str:
    if row.hint_at is None:
        return "never"
    current = "this slot" if row.hint_seq == row.alarm_seq else "an earlier slot or a refused one, not this one"
    return f"{_moment(row.hint_at, now)}, {counted(row.hint_attempts, 'time', 'times')}: {current}"


def _lease(row: ThreadMaintenance, now: datetime) -> str:
    if row.lease_expires_at is None:
        return f"none (epoch {row.lease_epoch})"
    live = "live" if row.has_live_lease(now) else "expired"
    return f"{live}, epoch {row.lease_epoch}, owner {row.lease_owner}, ends {_moment(row.lease_expires_at, now)}"
