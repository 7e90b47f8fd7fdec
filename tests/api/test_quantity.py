"""Kubernetes quantities, as far as they must be understood to compare and to refuse them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserver.api.quantity import quantity_value

EQUAL = [
    ("1", "1000m"),
    ("0.5", "500m"),
    ("1Gi", "1024Mi"),
    ("1k", 1000),
    ("1e3", "1k"),
    ("2E", "2000P"),
    (".5", "500m"),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_one_quantity_has_several_spellings(one: str, other: str | int) -> None:
    assert quantity_value(one) == quantity_value(other)


@pytest.mark.parametrize("text", ["", "Gi", "5x", "1 Gi", "1Kib", "--1", "0x10", "1e999999", "1_000", "١"])
def test_what_is_no_quantity_is_refused_with_the_cure(text: str) -> None:
    with pytest.raises(ValueError, match="write a Kubernetes quantity"):
        quantity_value(text)


@given(st.integers(min_value=0, max_value=10**15))
def test_whole_numbers_stand_for_themselves(number: int) -> None:
    assert quantity_value(number) == quantity_value(str(number)) == Decimal(number)
