"""Durable agent threads: submissions, the canonical log, attempts, recovery, drivers.

`from agents import agent` declares a durable agent; everything else is behind `agents.api`.
"""

from __future__ import annotations

from agents.registry import agent

__all__ = ["agent"]
