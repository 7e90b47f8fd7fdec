"""The command line: what was written for vLLM works, and what cannot be is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from llamaserver_engine_sim.options import parse

GOLDEN = sorted((Path(__file__).resolve().parents[1] / "desired" / "golden").glob("*.yaml"))


def arguments(path: Path) -> list[str]:
    """Those of the engine's container."""
    for obj in yaml.safe_load_all(path.read_text()):
        if obj["kind"] == "Deployment":
            engine: dict[str, list[str]] = obj["spec"]["template"]["spec"]["containers"][0]
            return engine["args"]
    raise AssertionError(f"no Deployment in {path}")


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_what_the_operator_renders_is_taken_as_it_is(path: Path) -> None:
    given = arguments(path)
    options = parse(given, {})
    known = dict(
        word.removeprefix("--").split("=", 1) for word in given if word.startswith("--") and "=" in word
    )
    assert options.root == given[0]
    assert options.served[0] == given[given.index("--served-model-name") + 1]
    assert options.port == int(known["port"])
    assert options.profile.max_num_seqs == int(known["max-num-seqs"])
    assert options.profile.budget == int(known["max-num-batched-tokens"])
    if "max-model-len" in known:
        assert options.profile.max_model_len == int(known["max-model-len"])
    assert all(word in given for word in options.ignored)


def test_lengths_and_names_are_written_as_for_vllm() -> None:
    options = parse(["m", "--max_model_len", "4k", "--max-num-batched-tokens=2K", "--max_num_seqs=7"], {})
    assert (options.profile.max_model_len, options.profile.budget, options.profile.max_num_seqs) == (
        4000,
        2048,
        7,
    )
    assert parse(["--model", "m", "--max-model-len", "auto"], {}).served == ("m",)


def test_the_certificate_is_named_as_for_vllm() -> None:
    options = parse(["m", "--ssl-certfile=/c", "--ssl_keyfile", "/k", "--enable-ssl-refresh"], {})
    assert (options.certificate, options.key) == ("/c", "/k")
    assert options.ignored == ("--enable-ssl-refresh",)
    assert parse(["m"], {}).certificate is None


def test_the_cache_is_sized_as_for_vllm() -> None:
    options = parse(
        ["m", "--num-gpu-blocks-override", "320", "--block-size", "32", "--max-model-len=1024"], {}
    )
    assert (options.profile.kv_tokens, options.profile.longest) == (10_240, 1024)


def test_a_speed_makes_every_step_shorter() -> None:
    once, twice = parse(["m"], {}).profile, parse(["m", "--speed", "2"], {}).profile
    for load in ((1, 100, 0), (64, 64_000, 0), (200, 100_000, 4000)):
        assert twice.step_s(*load) == pytest.approx(once.step_s(*load) / 2)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--profile", "TPU"], "TPU"),
        (["--max-num-seqs", "0"], "--max-num-seqs"),
        (["--max-model-len", "many"], "--max-model-len"),
        (["--max-model-len", "1M"], "--max-model-len"),
        (["--max-num-batched-tokens", "100"], "--max-num-batched-tokens"),
        (["--speed", "0"], "--speed"),
        (["--port", "70000"], "--port"),
        (["--ssl-keyfile", "tls.key"], "--ssl-certfile"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    given: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(["m", *given], {})
    assert named in capsys.readouterr().err
