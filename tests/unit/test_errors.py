"""Errors that are safe to show: bounded, redacted, by kind and never by text (alarm-host, 18.6; R-13, R-15)."""

from __future__ import annotations

from typing import Any, NoReturn

import psycopg
import pytest
from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, OperationalError, ProgrammingError
from psycopg import errors as pg

from maintenance import errors
from maintenance.errors import (
    ADVANCE_GENERATION,
    BEGIN_PASS,
    DurableAlarmError,
    PassInterrupted,
    RuntimeFailed,
    WakefulError,
    alarm_operation,
    bounded,
    database_problem,
    described,
    is_disconnection,
    kind_of,
    traced,
)

SECRET = "sk-live-4242"


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """The error as a handler gets it: with a traceback and perhaps a cause."""
    with pytest.raises(type(error)) as caught:
        raise error from cause
    return caught.value


def from_the_driver(django: type[Exception], driver: type[Exception]) -> BaseException:
    """An error as Django wraps it: its text has the driver's DETAIL line with a key value."""
    text = f"duplicate key value\nDETAIL:  Key (token)=({SECRET}) already exists."
    return raised(django(text), driver(text))


# --- Bounds -------------------------------------------------------------------------------------


def test_r13_a_text_of_ten_thousand_characters_is_cut_to_the_bound() -> None:
    assert len(WakefulError("x" * 10_000).message) == 8_192
    assert len(str(DurableAlarmError(BEGIN_PASS, "x" * 10_000))) == 8_192


@pytest.mark.parametrize("length", [0, 8_191, 8_192])
def test_a_text_within_the_bound_is_kept_as_it_is(length: int) -> None:
    assert bounded("x" * length) == "x" * length


def test_a_cut_text_says_that_it_was_cut() -> None:
    assert bounded("abcdef", 4) == "abc…"


def test_the_zero_character_that_a_database_refuses_is_taken_out() -> None:
    assert WakefulError("a\x00b").message == "ab"


# --- What a person sees of an error -------------------------------------------------------------


def test_our_own_text_is_shown() -> None:
    assert described(RuntimeFailed("the head attempt failed")) == "the head attempt failed"
    assert described(DurableAlarmError(ADVANCE_GENERATION, "try again")) == "advance maintenance generation: try again"
    assert described(PassInterrupted("lease lost")) == "interrupted: lease lost"


def test_a_foreign_error_is_shown_by_its_kind_alone() -> None:
    shown = described(ValueError(SECRET))

    assert "ValueError" in shown
    assert SECRET not in shown


def test_a_kind_is_shown_without_anything_that_could_forge_a_line_or_markup() -> None:
    forged = type("Bad\nERROR <script>" + "x" * 200, (Exception,), {})

    assert kind_of(forged()) == ("BadERRORscript" + "x" * 200)[:80]


def test_an_error_without_a_usable_name_still_has_a_kind() -> None:
    assert kind_of(type("…", (Exception,), {})()) == "an unnamed error"


# --- Hostile objects ----------------------------------------------------------------------------


def refuse(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("hostile")


def hostile(base: type[Exception]) -> Exception:
    """An error that raises whatever is asked of it. Made late: pytest itself would ask a class of this module."""

    class Liar(type):
        __name__ = property(refuse)

    asked = ("__str__", "__repr__", "__getattr__", "__bool__", "__eq__", "__hash__")
    read = ("args", "message", "sqlstate", "__class__", "__cause__", "__context__", "__traceback__")
    members = dict.fromkeys(asked, refuse) | dict.fromkeys(read, property(refuse))
    made = Liar("Hostile", (base,), members)()
    assert isinstance(made, base)
    return made


def test_r13_an_error_that_raises_when_it_is_looked_at_gets_the_fallback_text() -> None:
    assert described(hostile(Exception)).startswith("an unnamed error was raised")


def test_r13_a_hostile_database_error_is_still_a_database_error() -> None:
    assert "the database refused the statement" in described(hostile(DatabaseError))


@pytest.mark.parametrize("base", [Exception, DatabaseError])
def test_r13_a_hostile_error_is_traced_and_wrapped(base: type[Exception]) -> None:
    trace = traced(raised(RuntimeFailed("the head attempt failed"), hostile(base)))

    assert "in raised\nRuntimeFailed: the head attempt failed" in trace
    assert "\nan unnamed error: " in trace


# --- The worker's log ---------------------------------------------------------------------------


def test_the_trace_for_the_log_names_places_kinds_and_texts_down_to_the_first_cause() -> None:
    trace = traced(raised(RuntimeFailed("the head failed"), raised(ValueError("no such invoice"))))

    assert [line for line in trace.splitlines() if " in " not in line] == [
        "RuntimeFailed: the head failed",
        "ValueError: no such invoice",
    ]
    assert "in raised" in trace


def test_the_trace_of_errors_that_cause_each_other_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first

    assert traced(first) == "ValueError: first\nValueError: second"


@pytest.mark.parametrize("driver", [pg.UniqueViolation, pg.CheckViolation, psycopg.OperationalError])
def test_r15_a_value_that_a_database_error_quotes_is_in_no_text(driver: type[Exception]) -> None:
    quoting = from_the_driver(IntegrityError, driver)
    wrapped = raised(RuntimeFailed(f"the head attempt failed: {described(quoting)}"), quoting)

    assert SECRET not in described(quoting)
    assert SECRET not in described(wrapped)
    assert SECRET not in traced(wrapped)
    assert SECRET not in str(DurableAlarmError(BEGIN_PASS, database_problem(quoting), quoting))


# --- SQLSTATE -----------------------------------------------------------------------------------

UNAVAILABLE = "the database is unavailable or locked"


@pytest.mark.parametrize(
    ("django", "driver", "text"),
    [
        (OperationalError, pg.LockNotAvailable, "held the thread's row longer than lock_timeout"),
        (OperationalError, pg.QueryCanceled, "statement_timeout"),
        (OperationalError, pg.SerializationFailure, "asked to retry"),
        (OperationalError, pg.DeadlockDetected, "asked to retry"),
        (DataError, pg.NumericValueOutOfRange, "out of range"),
        (IntegrityError, pg.CheckViolation, "constraint refused"),
        (IntegrityError, pg.UniqueViolation, "constraint refused"),
        (OperationalError, pg.AdminShutdown, UNAVAILABLE),
        (OperationalError, pg.CannotConnectNow, UNAVAILABLE),
        (OperationalError, pg.TooManyConnections, UNAVAILABLE),
        (OperationalError, pg.ConnectionException, UNAVAILABLE),
        (OperationalError, psycopg.OperationalError, UNAVAILABLE),
        (InterfaceError, psycopg.InterfaceError, UNAVAILABLE),
        (ProgrammingError, pg.UndefinedTable, "SQLSTATE 42P01"),
    ],
)
def test_a_database_error_is_told_by_its_sqlstate(django: type[Exception], driver: type[Exception], text: str) -> None:
    assert text in database_problem(from_the_driver(django, driver))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OperationalError("database is locked"), UNAVAILABLE),
        (IntegrityError("CHECK constraint failed"), "constraint refused"),
        (DatabaseError("odd"), "SQLSTATE unknown"),
    ],
)
def test_a_database_without_sqlstates_is_told_by_the_class(error: Exception, text: str) -> None:
    assert text in database_problem(error)


@pytest.mark.parametrize(
    ("error", "broken"),
    [
        (from_the_driver(OperationalError, psycopg.OperationalError), True),
        (from_the_driver(InterfaceError, psycopg.InterfaceError), True),
        (from_the_driver(OperationalError, pg.AdminShutdown), True),
        (from_the_driver(OperationalError, pg.ConnectionFailure), True),
        (from_the_driver(OperationalError, pg.LockNotAvailable), False),
        (from_the_driver(OperationalError, pg.QueryCanceled), False),
        (from_the_driver(IntegrityError, pg.UniqueViolation), False),
        (OperationalError("database is locked"), False),
        (ValueError("x"), False),
        (None, False),
    ],
)
def test_a_broken_connection_is_told_from_a_busy_database(error: BaseException | None, broken: bool) -> None:
    assert is_disconnection(error) is broken


def test_a_sqlstate_that_is_no_string_is_not_believed() -> None:
    error = DatabaseError("odd")
    error.sqlstate = 40_001  # type: ignore[attr-defined]

    assert "SQLSTATE unknown" in database_problem(error)


# --- The operation ------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", [OperationalError("gone"), InterfaceError("closed"), OverflowError("too large")])
def test_a_failed_operation_is_named_and_keeps_its_cause_out_of_its_text(cause: Exception) -> None:
    with pytest.raises(DurableAlarmError) as caught, alarm_operation(BEGIN_PASS):
        raise cause

    assert caught.value.operation == "begin maintenance pass"
    assert caught.value.cause is cause
    assert str(cause) not in caught.value.message


@pytest.mark.parametrize("error", [ValueError("x"), PassInterrupted("x"), KeyboardInterrupt(), RuntimeFailed("x")])
def test_what_is_no_failure_of_the_database_passes_through_an_operation(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, alarm_operation(BEGIN_PASS):
        raise error

    assert caught.value is error


def test_the_labels_of_the_reference_are_kept() -> None:
    labels = {
        "GET_ALARM": "get alarm",
        "SET_ALARM": "set alarm",
        "DELETE_ALARM": "delete alarm",
        "ADVANCE_GENERATION": "advance maintenance generation",
        "ENSURE_ALARM": "ensure maintenance alarm",
        "ENSURE_PUBLICATION_ALARM": "ensure publication alarm",
        "BEGIN_PASS": "begin maintenance pass",
        "FINISH_PASS": "finish maintenance pass",
        "FINISH_PUBLICATION_PASS": "finish publication pass",
        "PASS_DEADLINE": "maintenance pass deadline",
    }

    assert {name: getattr(errors, name) for name in labels} == labels
