"""/metrics beside what vLLM 0.32 itself renders: names, labels and buckets."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from engine_sim.sim import simulated
from llamaserver.observe import names

CAPTURE = Path(__file__).resolve().parents[1] / "observe" / "data" / "v0.32.0_generated_dp2.prom"
Series = dict[str, set[tuple[tuple[str, str], ...]]]
VALUES_OF_ITS_OWN = {"vllm:cache_config_info"}
"""Its labels tell the engine's configuration."""
SHORTENED = {"vllm:iteration_tokens_total_bucket"}
"""The capture holds the last bucket alone."""


def series(text: str, model: str) -> Series:
    """Label sets of engine 0 by name, as of a model called `model`."""
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("engine", "0") == "0":
                labels = (
                    {**sample.labels, "model_name": model} if "model_name" in sample.labels else sample.labels
                )
                found.setdefault(sample.name, set()).add(tuple(sorted(labels.items())))
    return found


async def test_every_series_of_the_capture_is_there_with_its_labels_and_buckets() -> None:
    async with simulated() as sim:
        await sim.complete()
        ours = series(await sim.get("/metrics"), "tiny")
    theirs = series(CAPTURE.read_text(), "tiny")
    assert len(theirs) >= 20
    for name, labels in theirs.items():
        assert name in ours, name
        if name in VALUES_OF_ITS_OWN:
            assert {key for one in labels for key, _ in one} == {key for one in ours[name] for key, _ in one}
        elif name in SHORTENED:
            assert labels <= ours[name]
        elif not name.endswith("_created"):
            assert labels == ours[name], name


async def test_whatever_the_operator_reads_of_this_release_is_there() -> None:
    async with simulated() as sim:
        await sim.complete()
        ours = series(await sim.get("/metrics"), "tiny")
    figures = {
        *(names.RUNNING, names.WAITING, names.WAITING_BY_REASON, names.KV_USAGE, names.PREEMPTIONS),
        *(names.PROMPT_TOKENS, names.CACHED_PROMPT_TOKENS, names.GENERATION_TOKENS, names.FINISHED),
        *(names.CACHE_CONFIG,),
    }
    histograms = (names.ITL, names.TPOT, names.TTFT, names.QUEUE, names.STEPS)
    wanted = {f"vllm:{figure[0]}" for figure in figures}
    wanted |= {f"vllm:{one[0]}_{part}" for one in histograms for part in ("bucket", "sum", "count")}
    wanted |= {names.CAP, names.CEILING, names.BUDGET}
    assert wanted <= ours.keys()
