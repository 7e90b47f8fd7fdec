"""What survives the operator: small, checked when read back, and enough to go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamaserver.control import Learned, initial

KNOWN = Learned(6.4e-3, 0.45e-3, 0.6e-6, 0.17e-3, 2e-3, cap=12.0, target_s=0.03, quantile=0.95, kappa=1.7)


def test_what_is_written_is_read_back() -> None:
    assert Learned.from_dict(KNOWN.to_dict()) == KNOWN
    assert Learned.from_dict({k: str(v) for k, v in KNOWN.to_dict().items()}) == KNOWN


def test_it_stays_small() -> None:
    assert len(KNOWN.to_dict()) <= 20
    assert all(isinstance(v, float) for v in KNOWN.to_dict().values())


@pytest.mark.parametrize(
    "change",
    [
        {"a_s": 0.0},
        {"a_s": "fast"},
        {"a_s": float("nan")},
        {"a_s": True},
        {"b_s": -1.0},
        {"noise": 7.0},
        {"trust": 0.0},
        {"quantile": 1.0},
        {"kappa": -2.0},
        {"cap": None},
        {"cap": 1e12},
        {"alien": 1.0},
        {"stop_ratio": 1.5},
    ],
)
def test_what_cannot_be_believed_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="learned"):
        Learned.from_dict({**KNOWN.to_dict(), **change})


def test_a_missing_figure_is_refused() -> None:
    raw = KNOWN.to_dict()
    del raw["g_s"]
    with pytest.raises(ValueError, match="g_s"):
        Learned.from_dict(raw)


def test_what_an_older_version_wrote_is_read_with_the_stop_ratio_unknown() -> None:
    raw = replace(KNOWN, stop_ratio=0.3).to_dict()
    assert Learned.from_dict(raw).kv().seed == 0.3
    del raw["stop_ratio"]
    assert Learned.from_dict(raw) == KNOWN
    assert KNOWN.kv().seed is None


@given(
    st.dictionaries(st.text(max_size=8), st.one_of(st.none(), st.floats(), st.text(max_size=5)), max_size=5)
)
def test_no_alien_dict_passes_or_raises_anything_else(raw: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="learned"):
        Learned.from_dict(raw)


def test_a_fresh_operator_knows_nothing_and_one_with_a_memory_hands_it_on() -> None:
    assert initial(None, 0.0).learned() is None
    assert initial(KNOWN, 0.0).learned() == KNOWN
