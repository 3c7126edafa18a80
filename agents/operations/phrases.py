"""One sentence for one submission: what it does or waits for, and whose turn it is.

What is said of a submission is a predicate ("waits for …"), so that it serves as a sentence of its own and inside
that of a follower ("Queued behind submission #3, which waits for …").
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.utils import timezone

from agents.models import CallStatus
from agents.operations.findings import Around, Found
from agents.recovery.classify import Decision
from agents.states import Wait
from maintenance import status
from maintenance.conf import get_settings
from maintenance.errors import bounded
from maintenance.wording import counted, spoken

RESTING = frozenset(
    {
        Decision.AWAIT_HOST,
        Decision.AWAIT_UNKNOWN_RESOLUTION,
        Decision.AWAIT_ANSWER,
        Decision.AWAIT_CHILD,
        Decision.AWAIT_PARENT_ESTABLISHMENT,
    }
)
"""Decisions with which the next pass has nothing to do: somebody else has to move."""

MAX_ERROR = 200


def sentence(found: Found, head: Found, where: Around) -> str:
    """What keeps a submission where it is. `head`: the first of its queue, which may be the submission itself."""
    if found.decision is Decision.APPLY_INPUT and found is not head:
        behind = f"queued behind submission #{head.facts.queue_sequence}, which "
        return _capital(behind + _with_machinery(_predicate(head, where) or "is next", head, where))
    said = _predicate(found, where)
    return _capital(_with_machinery(said, found, where) if said else _machinery(where))


def settled(outcome: str, settled_at: datetime | None, attempts: int, now: datetime) -> str:
    """The sentence of what is over."""
    when = "" if settled_at is None else f" {spoken(now - settled_at)} ago"
    return f"Settled as {outcome}{when}, after {counted(attempts, 'attempt', 'attempts')}"


def _with_machinery(said: str, found: Found, where: Around) -> str:
    """Adds what the thread's maintenance does about it: everything where a pass is needed, else only what holds it."""
    if found.tries.running_since is not None:
        return said
    if found.decision not in RESTING:
        return f"{said}; {_machinery(where)}"
    held = _held(where)
    return f"{said}; besides, {held}" if held else said


def _predicate(found: Found, where: Around) -> str:
    """What the submission does, without the machinery; nothing if only the machinery is to be told."""
    if found.tries.running_since is not None and found.abort is None:
        return _runs(found, where.now)
    return _PREDICATES[found.decision](found, where.now)


def _waits(found: Found, now: datetime) -> str:
    facts, ago = found.facts, spoken(now - found.since)
    match facts.waits_for:
        case Wait.APPROVAL:
            return _waits_for_approval(found, now)
        case Wait.EVENT:
            until = "" if facts.wake_at is None else f", {_until(facts.wake_at, now)}"
            return f"waits for event {facts.waits_on!r}, asked for {ago} ago{until}"
        case Wait.RETRY:
            tries = found.tries
            which = f"try {min(tries.fruitless + 1, tries.budget)} of {tries.budget}"
            return f"waits for {which} {_at(facts.wake_at, now)} ({facts.waits_on})"
        case Wait.TIMER:
            return f"sleeps {_until(facts.wake_at, now)}"
    return "waits"


def _waits_for_approval(found: Found, now: datetime) -> str:
    """Whom it asks for what. The values of the arguments are on the approval's own page, not here."""
    asked = next((one for one in found.approvals if one.name == found.facts.waits_on), None)
    if asked is None:
        return f"waits for approval {found.facts.waits_on!r}"
    what = f"{asked.tool}({asked.arguments})"
    expiry = "" if asked.expires_at is None else f", {_until(asked.expires_at, now)}"
    return (
        f"waits for approval of {what}, asked {spoken(now - asked.requested_at)} ago by agent {found.agent!r}{expiry}"
    )


def _wait_in_words(found: Found) -> str:
    facts = found.facts
    if facts.waits_for is Wait.TIMER:
        return "a timer"
    if facts.waits_for is Wait.RETRY:
        return f"a retry after {facts.waits_on}"
    return f"{facts.waits_for.label if facts.waits_for else 'an answer'} {facts.waits_on!r}"


def _unknown(found: Found, now: datetime) -> str:
    left = [call for call in found.calls if call.status == CallStatus.UNKNOWN and not call.resolved]
    if not left:
        return "has an answer for every unknown call and goes on"
    reason = f" ({left[0].reason})" if left[0].reason else ""
    calls = _calls(found, CallStatus.UNKNOWN)
    return f"waits for a person to say what became of {calls}, unknown for {spoken(now - left[0].since)}{reason}"


def _calls(found: Found, wanted: CallStatus) -> str:
    calls = [call for call in found.calls if call.status == wanted and not call.resolved]
    if not calls:
        return "a call"
    first, more = calls[0], len(calls) - 1
    return f"call {first.call!r} of tool {first.tool!r}" + (f" and {counted(more, 'more', 'more')}" if more else "")


def _aborted(found: Found, now: datetime) -> str:
    abort = found.abort
    if abort is None:
        return "was aborted and is settled as such"
    ago = spoken(now - abort.requested_at)
    runs = "its run ends at the next boundary" if found.tries.running_since else "it is settled as such"
    return f"was aborted by {abort.author} {ago} ago ({abort.reason}); {runs}"


def _runs(found: Found, now: datetime) -> str:
    """What recovery would make of it if its process died now is not what it does."""
    tries, calling = found.tries, ""
    if any(call.status == CallStatus.PREPARED for call in found.calls):
        calling = f", inside {_calls(found, CallStatus.PREPARED)}"
    lasts = spoken(now - (tries.running_since or now))
    return f"runs: attempt {tries.begun}, for {lasts}, in {tries.running_in}{calling}"


def _stopped(found: Found, _: datetime) -> str:
    tries = found.tries
    if not tries.fruitless:
        return "stopped at a boundary and goes on after its last record"
    left = f"{tries.left} {'attempt is' if tries.left == 1 else 'attempts are'} left"
    times = counted(tries.fruitless, "time", "times")
    if tries.lost == tries.fruitless:
        return f"lost its worker {times} without recorded progress; {left}"
    died = f", {tries.lost} of them with its worker" if tries.lost else ""
    return f"ended {times} without recorded progress{died}; {left}"


def _exhausted(found: Found, _: datetime) -> str:
    lost = f" ({found.tries.lost} of them with their worker)" if found.tries.lost else ""
    ended = counted(found.tries.fruitless, "attempt", "attempts")
    return f"has used up its attempts: {ended} ended without recorded progress{lost}; it is settled as failed"


_PREDICATES: dict[Decision, Callable[[Found, datetime], str]] = {
    Decision.NO_ACTION: lambda _found, _now: "",
    Decision.APPLY_INPUT: lambda _found, _now: "",
    Decision.RESUME_FROM_LAST_STEP: _stopped,
    Decision.SETTLE_EXHAUSTED: _exhausted,
    Decision.SETTLE_ABORTED: _aborted,
    Decision.AWAIT_ANSWER: _waits,
    Decision.RESUME_SUSPENDED: lambda found, _now: f"has what it waited for ({_wait_in_words(found)}) and goes on",
    Decision.AWAIT_UNKNOWN_RESOLUTION: _unknown,
    Decision.APPLY_UNKNOWN_RESOLUTIONS: _unknown,
    Decision.MARK_UNKNOWN: lambda found, _now: (
        f"left {_calls(found, CallStatus.PREPARED)} without a recorded result, and the next pass looks into it"
    ),
    Decision.AWAIT_HOST: lambda found, _now: (
        f"has joined the run of submission #{found.host_place}; they settle together"
    ),
    Decision.SETTLE_JOINED_WITH_HOST: lambda found, _now: (
        f"has joined the run of submission #{found.host_place}, which is settled; so is this"
    ),
    Decision.FINALIZE_FROM_HISTORY: lambda _found, _now: "has its settlement in the log, and its row is made to agree",
    Decision.AWAIT_CHILD: lambda found, _now: f"waits for what it delegated ({found.facts.waits_on})",
    Decision.RESUME_WAITING_PARENT: lambda _found, _now: "has the answers of what it delegated and goes on",
    Decision.AWAIT_PARENT_ESTABLISHMENT: lambda _found, _now: "waits until who delegated it has recorded that",
    Decision.CLOSE_CHILDREN: lambda _found, _now: "has its outcome; what it delegated is still being closed",
}


def _held(where: Around) -> str:
    """What a person or the quarantine holds back; nothing if the thread is free."""
    row = where.row
    if row is None:
        return ""
    if row.quarantined_at is not None:
        return f"in quarantine ({row.quarantine_reason or 'no reason kept'}) until a person releases it"
    if row.paused_at is None:
        return ""
    if where.paused_by is None:
        return "paused by an operator"
    return f"paused by {where.paused_by.actor}: {bounded(where.paused_by.reason, MAX_ERROR)}"


def _machinery(where: Around) -> str:
    """When the thread's next pass comes, or why it does not."""
    row, now = where.row, where.now
    held = _held(where)
    if row is None or held:
        return held or "no pass has ever been planned: run `maintenance ensure` on the thread"
    if row.has_live_lease(now):
        since = "" if row.lease_started_at is None else f" for {spoken(now - row.lease_started_at)}"
        return f"a pass holds the thread{since} and comes to it"
    if row.alarm_at is None:
        return "no alarm is armed although there is work: run `maintenance ensure` on the thread"
    if row.alarm_at > now:
        return f"the next pass is due {_at(row.alarm_at, now)}{_after_setbacks(where)}"
    due = max(row.alarm_at, row.lease_expires_at or row.alarm_at)
    if now - due <= status.usual_lateness():
        return f"the next pass is due now{_after_setbacks(where)}"
    return f"the alarm was due {spoken(now - due)} ago and no worker took it ({_hand_over(where)})"


def _hand_over(where: Around) -> str:
    row, queue = where.row, f"queue {get_settings().queue!r}"
    if row is None or row.hint_seq != row.alarm_seq:
        return f"{queue}; not handed over: no sweep runs, or the broker does not take messages"
    return f"{queue}; handed over {counted(row.hint_attempts, 'time', 'times')}"


def _after_setbacks(where: Around) -> str:
    row = where.row
    if row is None:
        return ""
    if row.failures:
        last = f": {bounded(row.last_error, MAX_ERROR)}" if row.last_error else ""
        return f", after {counted(row.failures, 'failed pass', 'failed passes')} in a row{last}"
    if row.starts_since_finish:
        return f", after {counted(row.starts_since_finish, 'pass', 'passes')} that began and did not end"
    return f", after {counted(row.stalls, 'pass', 'passes')} without progress" if row.stalls else ""


def _at(at: datetime | None, now: datetime) -> str:
    """A moment on the clock and from now."""
    if at is None:
        return "at once"
    return f"at {_clock(at, now)} (in {spoken(at - now)})" if at > now else f"at {_clock(at, now)}"


def _until(at: datetime | None, now: datetime) -> str:
    return "" if at is None else f"until {_at(at, now).removeprefix('at ')}"


def _clock(at: datetime, now: datetime) -> str:
    """The time of day where this is read; with the date if it is another day's."""
    local, today = (timezone.localtime(one) if timezone.is_aware(one) else one for one in (at, now))
    return local.strftime("%H:%M:%S" if local.date() == today.date() else "%Y-%m-%d %H:%M:%S")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
