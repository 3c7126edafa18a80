"""Durable agent threads: submissions, the canonical log, attempts, recovery, drivers.

`from agents import agent, tool` declares durable agents and their tools; everything else is behind `agents.api`.
"""

from __future__ import annotations

from agents.registry import agent
from agents.tools import tool

__all__ = ["agent", "tool"]
