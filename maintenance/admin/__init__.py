"""The admin of maintenance: look at everything, change nothing by hand, act with a reason."""

from __future__ import annotations

from maintenance.admin.records import MutationLeaseAdmin, OperatorActionAdmin, PassRunAdmin, WorkerHeartbeatAdmin
from maintenance.admin.threads import ThreadMaintenanceAdmin

__all__ = [
    "MutationLeaseAdmin",
    "OperatorActionAdmin",
    "PassRunAdmin",
    "ThreadMaintenanceAdmin",
    "WorkerHeartbeatAdmin",
]
