"""Process-local counters, read by Prometheus. Labels are outcomes and modes, never ids."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

deliveries = Counter("wakeful_deliveries_total", "Deliveries of a pass message, by outcome.", ["outcome"])
mutations = Counter("wakeful_mutations_total", "Committed mutations, by mode.", ["mode"])
mutation_lease_lost = Counter(
    "wakeful_mutation_lease_lost_total", "Pre-armed mutations that ended after their lease had expired."
)
dispatch_failures = Counter("wakeful_dispatch_failures_total", "Hints that the broker did not take.")
swept = Counter("wakeful_sweep_published_total", "Hints that a sweep handed over.")
reaped = Counter("wakeful_reaped_total", "Leases released because their owner is provably dead.")
quarantined = Counter("wakeful_quarantined_total", "Threads quarantined after too many starts.")
stuck_deadlines = Counter(
    "wakeful_stuck_deadlines_total", "Threads whose port's deadline was still due after 20 passes in a row."
)
lateness = Histogram(
    "wakeful_alarm_lateness_seconds",
    "From the deadline of a slot to the begin of its pass.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60),
)
