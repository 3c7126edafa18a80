"""Canonical text: RFC 8785, round trips, what has no form (scenario E 60)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents import canonical
from agents.canonical import Json, NotJson

SAFE = 2**53 - 1
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-SAFE, SAFE) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_was_read_is_written_the_same_way_again(value: Any) -> None:
    text = canonical.encode(value)
    assert canonical.encode(canonical.parse(text)) == text


@given(VALUES)
def test_a_composed_object_is_what_encoding_it_whole_gives(value: Any) -> None:
    spliced = canonical.compose({"b": canonical.encode(value), "a": 1})
    assert spliced == canonical.encode({"a": 1, "b": value})


def test_60_the_order_of_keys_does_not_matter_and_is_by_utf16_units() -> None:
    assert canonical.encode({"b": 1, "a": 2}) == canonical.encode({"a": 2, "b": 1}) == '{"a":2,"b":1}'
    # U+1F600 is two UTF-16 units from 0xD83D on, so it comes before U+FB33, which comes first by code point.
    assert list(json.loads(canonical.encode({"\ufb33": 1, "\U0001f600": 2}))) == ["\U0001f600", "\ufb33"]


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1"), (-0.0, "0"), (1e21, "1e+21"), (1e16, "10000000000000000"), (0.1, "0.1")]
)
def test_numbers_are_written_as_ecmascript_does(value: float, text: str) -> None:
    assert canonical.encode(value) == text
    assert canonical.encode(canonical.parse(text)) == text


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("inf"), "not finite"),
        (2**53, "beyond"),
        ({1: 2}, "keys must be strings"),
        ({"x": b"bytes"}, "type bytes"),
        (["\udc00"], "surrogate"),
        ({"\udc00": 1}, "surrogate"),
    ],
)
def test_what_has_no_form_is_refused_with_a_reason(value: Any, why: str) -> None:
    with pytest.raises(NotJson, match=why):
        canonical.encode(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(NotJson, match="nested deeper"):
        canonical.encode(ring)


def test_a_canonical_text_is_spliced_as_it_stands() -> None:
    assert canonical.compose({"x": Json('{"kept":  1}')}) == '{"x":{"kept":  1}}'


def test_sizes_and_digests_are_those_of_the_bytes() -> None:
    assert canonical.size('"ü"') == 4
    assert canonical.digest('"ü"') == hashlib.sha256('"ü"'.encode()).hexdigest()
