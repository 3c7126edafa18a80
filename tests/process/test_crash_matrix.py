"""SIGKILL at every failpoint there is, in a real process; another goes on, and what was accepted ends exactly once.

The cells are made from the list of all failpoints, so a new one without a life that passes it fails here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from django.apps import apps
from django.db import connection, connections, transaction

from maintenance.failpoints import ALL
from tests.process.crash import effects
from tests.process.crash.lives import Cell, cells
from tests.process.crash.matrix import THREAD, Cradle, Story
from tests.process.crash.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_django.plugin import DjangoDbBlocker

pytestmark = pytest.mark.process

FORMS = ["fused", "plain"] if connections["default"].vendor == "postgresql" else ["plain"]
WHOLE = bool(os.environ.get("CRASH_MATRIX"))
"""Whether every cell is tried in every form. Otherwise only the first cell of each failpoint is."""


def tried() -> list[tuple[Cell, str]]:
    """The cells with the forms of the statements in which they are tried."""
    seen: set[str] = set()
    made = []
    for cell in cells():
        first = cell.point not in seen
        seen.add(cell.point)
        made += [(cell, form) for form in (FORMS if first or WHOLE else FORMS[:1])]
    return made


@pytest.fixture(scope="module")
def cradle(child_environment: dict[str, str]) -> Iterator[Cradle]:
    """Return the process from which those of the matrix are forked."""
    made = Cradle({**child_environment, "LOG_JSON": "0", "LOG_LEVEL": "WARNING"})
    yield made
    made.close()


@pytest.fixture
def transactional_db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Replace the plugin's: let this process see what the others commit; the tables are emptied by one transaction."""
    with django_db_blocker.unblock():
        _empty_tables()
        yield
        _empty_tables()
        connection.close()


def _empty_tables() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        for label in ("wakeful_agents", "wakeful_maintenance"):
            for model in apps.get_app_config(label).get_models():
                cursor.execute(f"DELETE FROM {connection.ops.quote_name(model._meta.db_table)}")


@pytest.mark.parametrize(("cell", "form"), tried(), ids=str)
def test_a_process_killed_there_is_survived(
    cell: Cell,
    form: str,
    cradle: Cradle,
    transactional_db: None,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    record_property("point", cell.point)
    story = Story(cradle, cell, tmp_path, fused=form == "fused")

    story.play()

    verdict = judge(story.life, THREAD, story.path)
    record_property("lost", verdict.lost)
    record_property("settled_twice", verdict.settled_twice)
    assert effects.hits(story.path) == [*story.life.preludes, cell.point]
    assert verdict.converged, verdict.problems


def test_every_failpoint_has_a_cell() -> None:
    assert {cell.point for cell in cells()} == set(ALL)


def test_a_form_that_runs_an_open_call_again_is_caught(cradle: Cradle, transactional_db: None, tmp_path: Path) -> None:
    story = Story(cradle, Cell("tools:ran", "ordinary"), tmp_path, fused=True, variant="reruns open calls")

    story.play()

    assert judge(story.life, THREAD, story.path).problems == ["charge happened 2 times"]


def test_a_form_that_forgets_what_sleeps_is_caught(cradle: Cradle, transactional_db: None, tmp_path: Path) -> None:
    story = Story(cradle, Cell("submit:after", "sleep"), tmp_path, fused=True, variant="forgets timers")

    with pytest.raises(AssertionError, match="not settled"):
        story.play()

    assert judge(story.life, THREAD, story.path).lost == 1
