"""Profiles by name, changed by hand, or of one's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llamaserver.control import Learned
from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.profiles import PROFILES, parse_profile


def test_every_profile_is_found_by_its_name_and_says_where_it_is_from() -> None:
    for name, found in PROFILES.items():
        assert parse_profile(name.lower()) == found
        assert len(found.source) > 20


def test_a_profile_of_ones_own() -> None:
    made = parse_profile("a=7ms,b=14us,g=50ns,d=25us,kv_tokens=400000,budget=4096").profile
    assert (made.a, made.b, made.g, made.d, made.c) == pytest.approx((7e-3, 14e-6, 50e-9, 25e-6, 0.0))
    assert (made.kv_tokens, made.max_num_seqs, made.budget, made.gpus) == (400_000, 256, 4096, 1)


def test_a_known_profile_started_otherwise() -> None:
    made = parse_profile("H100-8B,max_num_seqs=512,budget=2048")
    assert (made.profile.max_num_seqs, made.profile.budget) == (512, 2048)
    assert made.profile.a == PROFILES["H100-8B"].profile.a


@pytest.mark.parametrize(
    ("text", "longest"),
    [
        ("H100-8B", 131_072),
        ("CPU", 2048),
        ("H100-8B,max_model_len=16384", 16_384),
        ("H100-8B,kv_tokens=60000", 60_000),
        ("a=7ms,b=14us,g=50ns,d=25us,kv_tokens=400000", 131_072),
    ],
)
def test_a_sequence_is_as_long_as_the_model_and_the_cache_allow(text: str, longest: int) -> None:
    made = parse_profile(text).profile
    assert made.longest == longest
    assert made.takes(longest - 1, 1)
    assert not made.takes(longest, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("B200", "there are H100-8B"),
        ("a=7ms", "says nothing of b, g, d, kv_tokens"),
        ("a=7,b=14us,g=50ns,d=25us,kv_tokens=1", "a time with its unit"),
        ("a=-7ms,b=14us,g=50ns,d=25us,kv_tokens=1", "a=-7ms of the profile cannot be"),
        ("H100-8B,speed=2", "a profile has no 'speed'"),
        ("H100-8B,budget=100", "raise budget or lower max_num_seqs"),
        ("H100-8B,kv_tokens=10ms", "kv_tokens=10ms"),
        ("H100-8B,max_num_seqs=0.5", "a whole number from 1 up"),
        ("H100-8B,budget=8192.5", "a whole number from 1 up"),
        ("H100-8B,gpus=0", "a whole number from 1 up"),
        ("H100-8B,knee=2", "knee=2 of the profile cannot be; write 0 or 1"),
        ("H100-8B,max_model_len=500000", "lower max_model_len or raise kv_tokens"),
    ],
)
def test_what_cannot_be_is_answered_with_the_cure(text: str, says: str) -> None:
    with pytest.raises(SimulationError) as error:
        parse_profile(text)
    assert says in str(error.value)


def test_what_the_guide_prints_of_a_status_is_a_profile() -> None:
    """The line of kubectl in docs/simulate.md, on figures as the operator writes them."""
    guide = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
    line = re.search(r"jsonpath='(a=.*)'", guide)
    assert line is not None
    learned = Learned(a_s=7.12e-3, b_s=1.4e-5, g_s=0.0, d_s=2.5e-5)
    status = {name: f"{value:.6g}" for name, value in learned.to_dict().items()}
    printed = re.sub(r"{\.status\.model\.(\w+)}", lambda found: status[found[1]], line[1])
    profile = parse_profile(f"{printed},kv_tokens=400000").profile
    assert (profile.a, profile.b, profile.g, profile.d, profile.c) == (7.12e-3, 1.4e-5, 0.0, 2.5e-5, 0.0)
