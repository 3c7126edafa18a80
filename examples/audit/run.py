"""One run of the demo: submit, work under fire, judge."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from agents.api import settlement, submit
from agents.models import Submission
from examples.audit import inspection, screen, verdict
from examples.audit.assassin import Assassin
from examples.audit.durable_agents import Finding
from examples.audit.workers import Worker

POLL_SECONDS = 0.02
BACKLOG = 8
"""How many audits are accepted and not settled at any time, as in a service with steady traffic."""


@dataclass(slots=True)
class Run:
    """Folders and counts of one run."""

    folder: Path
    kills: int
    patience: float
    """Seconds after which unsettled work counts as lost."""
    accepted: list[UUID] = field(default_factory=list)

    def play(self) -> verdict.Verdict:
        """Submits, starts the workers, kills and restarts them until all is settled, and judges."""
        workers = self._workers()
        assassin = Assassin(workers, self.kills)
        try:
            self._until_settled(workers, assassin)
        finally:
            for worker in workers:
                worker.stop()
        return verdict.reach(
            self.accepted,
            witness=Path(os.environ["AUDIT_JOURNAL"]),
            kills=assassin.kills,
            interrupted=len(assassin.interrupted),
        )

    def findings(self) -> list[Finding]:
        """The results of the audits that completed."""
        ended = [settlement(submission_id) for submission_id in self.accepted]
        return [Finding.model_validate(each.result) for each in ended if each and each.outcome == "completed"]

    def _workers(self) -> list[Worker]:
        logs = self.folder / "logs"
        logs.mkdir()
        return [Worker(name, logs, dict(os.environ)) for name in ("worker-1", "worker-2")]

    def _until_settled(self, workers: list[Worker], assassin: Assassin) -> None:
        waiting = inspection.names()
        total, settled = len(waiting), 0
        deadline = time.monotonic() + self.patience
        with screen.progress() as bar:
            task = bar.add_task("audit", total=total, kills=0)
            while settled < total and time.monotonic() < deadline:
                while waiting and len(self.accepted) - settled < BACKLOG:
                    self.accepted.append(_submit(waiting.pop(0)))
                for worker in workers:
                    worker.keep_alive()
                assassin.strike()
                settled = _settled(self.accepted)
                bar.update(task, completed=settled, kills=assassin.kills)
                time.sleep(POLL_SECONDS)


def _submit(name: str) -> UUID:
    receipt = submit(f"audit:{name}", "audit", {"distribution": name}, idempotency_key="first", principal="demo")
    return receipt.submission_id


def _settled(accepted: list[UUID]) -> int:
    return Submission.objects.filter(pk__in=accepted, state="settled").count()
