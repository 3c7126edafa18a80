"""What can be learnt about an installed distribution from its own files. Reads only."""

from __future__ import annotations

import base64
import hashlib
from importlib.metadata import Distribution, PackagePath, distribution, distributions
from pathlib import Path
from typing import TypedDict

SHOWN = 20
"""How many paths a finding lists at most."""


class Metadata(TypedDict):
    """The name and version that a distribution gives itself."""

    name: str
    version: str


class Record(TypedDict):
    """How the files compare with RECORD."""

    checked: int
    modified: list[str]
    missing: list[str]


def names() -> list[str]:
    """The installed distributions, each once, by name."""
    return sorted({name for found in distributions() if (name := found.metadata["Name"])}, key=str.lower)


def metadata(name: str) -> Metadata:
    """Raises `importlib.metadata.PackageNotFoundError` if it is not installed."""
    found = distribution(name)
    return {"name": found.metadata["Name"], "version": found.version}


def check_record(name: str) -> Record:
    """Compares every file that RECORD lists with a hash to what is on disk."""
    modified: list[str] = []
    missing: list[str] = []
    listed = [path for path in _files(distribution(name)) if path.hash is not None]
    for path in listed:
        place = Path(str(path.locate()))
        if not place.is_file():
            missing.append(str(path))
        elif not _matches(path, place):
            modified.append(str(path))
    return {"checked": len(listed), "modified": modified[:SHOWN], "missing": missing[:SHOWN]}


def licence(name: str) -> str:
    """The licence as the metadata states it, shortest form first; "unstated" if it does not."""
    stated = distribution(name).metadata.json
    classifiers = [str(text) for text in stated.get("classifier", ())]
    named = [text.rpartition(" :: ")[2] for text in classifiers if text.startswith("License")]
    text = str(stated.get("license_expression") or "") or (named[0] if named else str(stated.get("license") or ""))
    return text.strip().splitlines()[0][:60] if text.strip() else "unstated"


def size(name: str) -> int:
    """The bytes that its files take on disk."""
    places = (Path(str(path.locate())) for path in _files(distribution(name)))
    return sum(place.stat().st_size for place in places if place.is_file())


def _files(found: Distribution) -> list[PackagePath]:
    return found.files or []


def _matches(path: PackagePath, place: Path) -> bool:
    stated = path.hash
    if stated is None or stated.mode not in hashlib.algorithms_guaranteed:
        return True
    with place.open("rb") as stream:
        digest = hashlib.file_digest(stream, stated.mode).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == stated.value
