"""The engine behind the settings dictionaries `MAINTENANCE` and `AGENTS`.

A frozen dataclass declares what may be set; each field says how its value is read. The key in the
dictionary is the field's name in capitals plus its unit: `lease_ttl: timedelta =
milliseconds(30_000, …)` is read from `LEASE_TTL_MS`. Whatever is wrong with a dictionary is
reported together, by key, before anything runs on half of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SchemaT = TypeVar("SchemaT", bound="DataclassInstance")


class _Unfit(Exception):
    """The value is not what the setting expects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A combination of settings, each valid by itself, that would break a promise of the system."""

    id: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class _Setting:
    """How one field is read; `unit` ends its key."""

    METADATA_KEY: ClassVar[str] = "wakeful.setting"

    read: Callable[[object], object]
    """Turns a value of the dictionary into the field's value, or raises `_Unfit`."""
    expected: str
    """What a value must be, to finish the sentence "X must be …"."""
    unit: str = ""

    def key(self, attribute: str) -> str:
        return attribute.upper() + self.unit


def milliseconds(default: int, *, low: int, high: int) -> Any:
    """Declare a `timedelta` set as whole milliseconds (`…_MS`) from `low` to `high`."""
    return _duration(default, low=low, high=high, unit="milliseconds", suffix="_MS")


def optional_milliseconds(*, low: int, high: int) -> Any:
    """Declare a `timedelta` set as whole milliseconds (`…_MS`) that need not be there: `None` unless it is given."""

    def read(value: object) -> timedelta | None:
        return None if value is None else timedelta(milliseconds=_whole_number(value, low=low, high=high))

    return _declare(None, _Setting(read, f"None or a whole number of milliseconds from {low} to {high}", "_MS"))


def days(default: int, *, low: int, high: int) -> Any:
    """Declare a `timedelta` set as whole days (`…_DAYS`) from `low` to `high`."""
    return _duration(default, low=low, high=high, unit="days", suffix="_DAYS")


def integer(default: int, *, low: int, high: int) -> Any:
    """Declare a whole number from `low` to `high`."""

    def read(value: object) -> int:
        return _whole_number(value, low=low, high=high)

    return _declare(default, _Setting(read, f"a whole number from {low} to {high}"))


def optional_integer(*, low: int, high: int) -> Any:
    """Declare a whole number that need not be there: `None` unless it is given."""

    def read(value: object) -> int | None:
        return None if value is None else _whole_number(value, low=low, high=high)

    return _declare(None, _Setting(read, f"None or a whole number from {low} to {high}"))


def boolean(default: bool) -> Any:
    """Declare a switch: `True` or `False`, not merely something truthy."""

    def read(value: object) -> bool:
        if not isinstance(value, bool):
            raise _Unfit
        return value

    return _declare(default, _Setting(read, "True or False"))


def text(default: str) -> Any:
    """Declare a name: a string with something in it."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            raise _Unfit
        return value

    return _declare(default, _Setting(read, "a string that is not empty"))


def dotted_path(default: str) -> Any:
    """Declare the import path of an object, as Django's own backends are named."""
    return _declare(default, _Setting(_import_path, "a dotted path such as 'package.module.Name'"))


def optional_path() -> Any:
    """Declare the import path of an object that need not be there: `None` unless it is named."""

    def read(value: object) -> str | None:
        return None if value is None else _import_path(value)

    return _declare(None, _Setting(read, "None or a dotted path such as 'package.module.name'"))


def dotted_paths(default: tuple[str, ...] = ()) -> Any:
    """Declare a list of import paths, read as a tuple."""

    def read(value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple):
            raise _Unfit
        return tuple(_import_path(path) for path in value)

    return _declare(default, _Setting(read, "a list of dotted paths"))


def settings_getter(name: str, schema: type[SchemaT]) -> Callable[[], SchemaT]:
    """Return a cached getter of Django's setting `name` as a `schema`.

    It reads again after `setting_changed`, so that `override_settings` works in tests.
    """

    @cache
    def get_settings() -> SchemaT:
        return read_settings(schema, getattr(settings, name, {}), name=name)

    def forget(*, setting: str, **_kwargs: object) -> None:
        if setting == name:
            get_settings.cache_clear()

    setting_changed.connect(forget, weak=False)
    return get_settings


def read_settings(schema: type[SchemaT], given: object, *, name: str) -> SchemaT:
    """Build `schema` from the dictionary `given`; defaults stand for what it leaves out.

    Raises `ImproperlyConfigured` with everything that is wrong in it, one sentence a line.
    """
    if not isinstance(given, Mapping):
        message = f"{name} must be a dictionary, not {given!r}."
        raise ImproperlyConfigured(message)
    declared = {_setting(item).key(item.name): item for item in fields(schema)}
    faults = [_unknown_key(name, key, declared) for key in given if key not in declared]
    values: dict[str, object] = {}
    for key in given.keys() & declared.keys():
        setting = _setting(declared[key])
        try:
            values[declared[key].name] = setting.read(given[key])
        except _Unfit:
            faults.append(f"{name}[{key!r}] must be {setting.expected}, not {given[key]!r}.")
    if faults:
        raise ImproperlyConfigured("\n".join(sorted(faults)))
    return schema(**values)


def _declare(default: object, setting: _Setting) -> Any:
    # Typed as Any, like `dataclasses.field` itself: the annotation beside it states the type.
    return field(default=default, metadata={_Setting.METADATA_KEY: setting})


def _duration(default: int, *, low: int, high: int, unit: str, suffix: str) -> Any:
    def read(value: object) -> timedelta:
        return timedelta(**{unit: _whole_number(value, low=low, high=high)})

    expected = f"a whole number of {unit} from {low} to {high}"
    return _declare(timedelta(**{unit: default}), _Setting(read, expected, suffix))


def _setting(item: Field[Any]) -> _Setting:
    found: _Setting = item.metadata[_Setting.METADATA_KEY]
    return found


def _whole_number(value: object, *, low: int, high: int) -> int:
    # A bool is an int to Python, but `SWEEP_BATCH: True` is a mistake.
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _Unfit
    return value


def _import_path(value: object) -> str:
    parts = value.split(".") if isinstance(value, str) else []
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise _Unfit
    return ".".join(parts)


def _unknown_key(name: str, key: object, declared: Iterable[str]) -> str:
    close = get_close_matches(str(key).upper(), list(declared), n=1)
    suggestion = f"; did you mean {close[0]!r}?" if close else "."
    return f"{name} has no key {key!r}{suggestion}"
