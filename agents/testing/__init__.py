"""Tools for tests of durable agents: passes without a broker, time that can be moved, processes that die on order.

`DurableTests` mixed into a Django test case, or the fixture of `agents.testing.plugin` under pytest, gives a test what
it stands on; the functions do the rest. Nothing here is imported by production code.
"""

from __future__ import annotations

from agents.testing.alarms import assert_alarm, refute_alarm
from agents.testing.crashes import crash_at, expect_crash
from agents.testing.declaring import agent_for_test
from agents.testing.scripts import Script, crash_after_effect, scripted_tool
from agents.testing.session import DurableTests, durable_testing, run_due_passes, travel
from agents.testing.submissions import settled, waiting
from maintenance.testing import Crash

__all__ = [
    "Crash",
    "DurableTests",
    "Script",
    "agent_for_test",
    "assert_alarm",
    "crash_after_effect",
    "crash_at",
    "durable_testing",
    "expect_crash",
    "refute_alarm",
    "run_due_passes",
    "scripted_tool",
    "settled",
    "travel",
    "waiting",
]
