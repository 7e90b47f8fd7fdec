"""The command line."""

from __future__ import annotations

import pytest

from bench.scenarios import SCENARIOS, USUAL
from bench.settings import POLICIES, parse


def test_by_default_everything_but_the_further_variants() -> None:
    wanted = parse([]).wanted
    assert wanted.scenarios == USUAL
    assert wanted.statistic == "p95"
    assert wanted.policies == ("default", "best_cap", "best_pair", "ours")
    assert (wanted.repeats, wanted.minutes, wanted.variants) == (4, 60.0, ("ours",))


def test_fewer_scenarios_take_less_time() -> None:
    assert parse(["--scenarios", "chat_mix"]).wanted.minutes == 7.5
    assert parse(["--scenarios", "mix_change"]).wanted.minutes == 15
    assert parse(["--scenarios", "chat_mix", "--minutes", "20"]).wanted.minutes == 20


def test_policies_stand_in_one_order_however_they_are_named() -> None:
    assert parse(["--policies", *reversed(POLICIES)]).wanted.policies == POLICIES


@pytest.mark.parametrize(
    "flags",
    [
        ("--scenarios", "none"),
        ("--policies", "none"),
        ("--statistic", "mean"),
        ("--repeats", "0"),
        ("--window", "0"),
        ("--settle", "-1"),
    ],
)
def test_what_makes_no_sense_is_refused(flags: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit):
        parse(flags)


def test_help_names_every_policy_and_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in (*POLICIES, *SCENARIOS))
