"""The rows of agents. Fields, constraints and pure derivations; every write is in a verb's module."""

from __future__ import annotations

from agents.models.attempt import Attempt
from agents.models.record import LogBatch, LogRecord
from agents.models.submission import Submission
from agents.models.thread import Thread

__all__ = ["Attempt", "LogBatch", "LogRecord", "Submission", "Thread"]
