"""What a host project installs: the two apps, typed, with their migrations, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the names of all files in a freshly built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_the_two_apps_alone(names: set[str]) -> None:
    packages = {name.partition("/")[0] for name in names}

    assert {name for name in packages if not name.endswith(".dist-info")} == {
        "agents",
        "maintenance",
    }


def test_the_wheel_is_typed_and_brings_its_migrations(names: set[str]) -> None:
    assert {"agents/py.typed", "maintenance/py.typed"} <= names
    assert "maintenance/migrations/0001_initial.py" in names


def test_the_wheel_brings_the_pages_of_the_admin(names: set[str]) -> None:
    pages = {
        "agents/static/wakeful_agents/admin.css",
        "agents/templates/admin/wakeful_agents/inspected.html",
        "maintenance/static/wakeful_maintenance/admin.css",
        "maintenance/templates/admin/wakeful_maintenance/reasoned_action.html",
    }
    assert pages <= names
