"""Whether what was accepted came to exactly what it had to, whatever died meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from django.db.models import F, Q

from agents import api
from agents.log import export
from agents.models import Submission
from agents.records import SubmissionSettled
from maintenance.models import ThreadMaintenance
from tests.process.crash import effects
from tests.process.crash.lives import Ended, Life


@dataclass
class Verdict:
    """What is wrong with the end of a life; nothing is if it converged."""

    lost: int = 0
    """Accepted submissions without a settlement."""
    settled_twice: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def converged(self) -> bool:
        return not (self.problems or self.lost or self.settled_twice)


def judge(life: Life, thread_id: str, path: str) -> Verdict:
    """Looks at the log, the rows, and the effects outside."""
    verdict = Verdict()
    rows = list(Submission.objects.filter(thread_id=thread_id).order_by("queue_sequence"))
    records = Counter(record.payload["submission"] for record in _settlements(thread_id))
    verdict.lost = len(life.inputs) - len(records)
    verdict.settled_twice = sum(count - 1 for count in records.values())
    if verdict.lost:
        verdict.problems.append(f"unsettled: {[(row.state, row.waits_for) for row in rows]}")
        return verdict
    ended = [_ended(api.settlement(row.pk)) for row in rows]
    if ended != life.ends:
        verdict.problems.append(f"they came to {ended}, not to {life.ends}")
    report = api.verify(thread_id, all_settled=True)
    verdict.problems += [f"{check.name}: {check.detail}" for check in report.failed]
    verdict.problems += _effects(life, path)
    if ThreadMaintenance.objects.exclude(_AT_REST).exists():
        verdict.problems.append("the thread is not at rest")
    return verdict


_AT_REST = Q(processed=F("dirty"), alarm_at__isnull=True, lease_token__isnull=True)


def _settlements(thread_id: str) -> list[Any]:
    return [record for record in export(thread_id) if record.family == SubmissionSettled.family]


def _ended(settlement: api.Settlement | None) -> Ended:
    if settlement is None:
        return ("unsettled", None)
    result = settlement.failure.error_tag if settlement.failure else settlement.result
    return (settlement.outcome, result)


def _effects(life: Life, path: str) -> list[str]:
    counts = effects.counts(path)
    found = [f"{effect} happened {counts[effect]} times" for effect in life.once if counts[effect] != 1]
    keys = {effect: effects.keys(path, effect) for effect in life.one_key}
    return [*found, *(f"{effect} happened under {len(used)} keys" for effect, used in keys.items() if len(used) != 1)]
