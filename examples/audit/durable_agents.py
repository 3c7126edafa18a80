"""The `audit` agent: one submission per distribution, four durable steps."""

from __future__ import annotations

from pydantic import BaseModel

from agents.api import Context, agent
from examples.audit import inspection
from examples.audit.journal import journalled


class Request(BaseModel):
    """Which installed distribution to audit."""

    distribution: str


class Finding(BaseModel):
    """What the audit found."""

    distribution: str
    version: str
    licence: str
    files: int
    bytes: int
    modified: list[str]
    missing: list[str]


@agent("audit", input=Request, output=Finding)
def audit(ctx: Context, request: Request) -> Finding:
    """Each step runs, is recorded once, and is never run again once it is recorded, whatever is killed."""
    name = request.distribution
    metadata = ctx.step("metadata", journalled(ctx, "metadata", inspection.metadata), name)
    record = ctx.step("record", journalled(ctx, "record", inspection.check_record), name)
    licence = ctx.step("licence", journalled(ctx, "licence", inspection.licence), name)
    size = ctx.step("size", journalled(ctx, "size", inspection.size), name)
    return Finding(
        distribution=metadata["name"],
        version=metadata["version"],
        licence=licence,
        files=record["checked"],
        bytes=size,
        modified=record["modified"],
        missing=record["missing"],
    )
