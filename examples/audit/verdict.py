"""What the demo promises to have kept, counted from the log, the history of passes and the witness file."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import UUID

from agents.api import verify
from agents.models import LogRecord, Submission
from examples.audit import journal
from maintenance.models import PassRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Counts, and lateness in milliseconds."""

    accepted: int
    settled: int
    lost: int
    settled_twice: int
    steps_run_twice: int
    """Steps that the witness file saw more than once: the ones a kill cut off before they were recorded."""
    recorded_steps_run_again: int
    """Beyond what kills explain. Must be none: a recorded step never runs again."""
    workers_killed: int
    passes_interrupted: int
    alarm_lateness_p50: float
    alarm_lateness_p99: float
    logs_verified: bool

    @property
    def kept(self) -> bool:
        """Whether every promise held."""
        broken = self.lost or self.settled_twice or self.recorded_steps_run_again
        return not broken and self.logs_verified and self.accepted == self.settled

    def save(self, path: Path) -> None:
        """Writes the verdict as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def reach(accepted: list[UUID], *, witness: Path, kills: int, interrupted: int) -> Verdict:
    """The verdict over the accepted submissions."""
    settled = Submission.objects.filter(pk__in=accepted, state="settled").count()
    again = {key: count - 1 for key, count in journal.runs(witness).items() if count > 1}
    lateness = _lateness()
    return Verdict(
        accepted=len(accepted),
        settled=settled,
        lost=len(accepted) - settled,
        settled_twice=sum(count > 1 for count in _settlements().values()),
        steps_run_twice=len(again),
        recorded_steps_run_again=max(0, sum(again.values()) - interrupted),
        workers_killed=kills,
        passes_interrupted=interrupted,
        alarm_lateness_p50=_percentile(lateness, 50),
        alarm_lateness_p99=_percentile(lateness, 99),
        logs_verified=_all_verified(),
    )


def _settlements() -> Counter[str]:
    """Settlement records in the logs, by the submission that they settle."""
    records = LogRecord.objects.filter(family="submission-settled")
    return Counter(json.loads(text)["payload"]["submission"] for text in records.values_list("text", flat=True))


def _all_verified() -> bool:
    threads = Submission.objects.values_list("thread_id", flat=True).distinct()
    return all(verify(thread_id).ok for thread_id in threads)


def _lateness() -> list[float]:
    """From the deadline of a slot to the begin of its pass, in milliseconds."""
    begun = PassRun.objects.filter(due_at__isnull=False).values_list("due_at", "started_at")
    return [max(0.0, (started - due).total_seconds() * 1000) for due, started in begun if due is not None]


def _percentile(values: list[float], percent: int) -> float:
    if len(values) < 2:
        return round(values[0], 1) if values else 0.0
    return round(statistics.quantiles(values, n=100, method="inclusive")[percent - 1], 1)
