"""Process-local counters, and gauges that a task sets every minute, read by Prometheus. Labels are kinds, never ids."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

submissions = Counter(
    "wakeful_submissions_total", "Answers to submit: accepted, replayed, or refused by which limit.", ["answer"]
)
attempts = Counter("wakeful_attempts_total", "Attempts that ended, by how.", ["ending"])
settlements = Counter("wakeful_settlements_total", "Settlements recorded by this process, by outcome.", ["outcome"])
steps = Counter("wakeful_steps_total", "Durable steps: recorded, or replayed from the log.", ["kind"])
tool_calls = Counter("wakeful_tool_calls_total", "Tool calls: settled, failed, unknown, or replayed.", ["kind"])
repairs = Counter("wakeful_repairs_total", "Repairs that recovery made, by decision.", ["decision"])

obligations = Gauge(
    "wakeful_obligations",
    "Unsettled submissions, by who or what has to move and how long it has not.",
    ["blocked_on", "severity"],
    multiprocess_mode="mostrecent",
)
oldest_obligation = Gauge(
    "wakeful_oldest_obligation_seconds",
    "Age of the oldest unsettled submission, by who or what has to move.",
    ["blocked_on"],
    multiprocess_mode="mostrecent",
)
