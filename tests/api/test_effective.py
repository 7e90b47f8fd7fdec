"""Every default, resolved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llamaserver.api import effective, parse
from llamaserver.api.enums import LatencyScope, MetricsSource, Precedence, ScalingMode, Statistic, TuningMode

Object = dict[str, Any]


def test_the_smallest_resource(minimal: Object) -> None:
    resolved = effective(parse(minimal).spec)
    assert resolved.served_names == ("meta-llama/Llama-3.1-8B-Instruct",)
    assert (resolved.max_num_seqs, resolved.max_num_batched_tokens) == (256, 2048)
    assert (resolved.min_num_seqs, resolved.max_num_active_seqs) == (1, 256)
    assert resolved.inter_token_latency is None
    assert (resolved.tuning_mode, resolved.scaling_mode) == (TuningMode.AUTO, ScalingMode.AUTO)
    assert (resolved.min_replicas, resolved.max_replicas, resolved.replicas) == (1, 1, None)
    assert (resolved.startup_timeout.seconds, resolved.drain_timeout.seconds) == (1800, 120)
    assert resolved.precedence is Precedence.INTER_TOKEN_LATENCY
    assert resolved.metrics_source is MetricsSource.ENGINE


def test_an_objective_without_a_statistic_is_about_the_p95(changed: Callable[..., Object]) -> None:
    resolved = effective(parse(changed({"spec.slo.interTokenLatency.target": "50ms"})).spec)
    assert resolved.inter_token_latency is not None
    assert resolved.inter_token_latency.statistic is Statistic.P95
    assert str(resolved.inter_token_latency) == "p95 <= 50ms"
    assert resolved.to_status(150).to_dict()["interTokenLatency"] == "p95 <= 50ms"


def test_an_objective_of_requests_is_named_as_one(changed: Callable[..., Object]) -> None:
    given = {"target": "40ms", "statistic": "p90", "scope": "Request"}
    resolved = effective(parse(changed({"spec.slo.interTokenLatency": given})).spec)
    assert resolved.inter_token_latency is not None
    assert resolved.inter_token_latency.scope is LatencyScope.REQUEST
    assert resolved.to_status(150).to_dict()["interTokenLatency"] == "p90/request <= 40ms"
    of_tokens = effective(parse(changed({"spec.slo.interTokenLatency": given | {"scope": "Token"}})).spec)
    assert str(of_tokens.inter_token_latency) == "p90 <= 40ms"
    assert of_tokens.rolling == resolved.rolling


def test_what_a_restart_has_chosen_is_in_force_and_the_ceiling_of_the_live_cap(
    changed: Callable[..., Object],
) -> None:
    spec = parse(changed({"spec.tuning.restart.minInterval": "90m"})).spec
    resolved = effective(spec, 96)
    assert (resolved.max_num_seqs, resolved.max_num_active_seqs, resolved.most_num_seqs) == (96, 96, 256)
    told = resolved.to_status(150).to_dict()
    assert (told["maxNumSeqs"], told["restartMinInterval"]) == (96, "90m")
    assert effective(parse(changed({})).spec, 96).max_num_seqs == 256


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"spec.scaling.mode": "Fixed"}, (1, 1, 1)),
        ({"spec.scaling.mode": "Fixed", "spec.replicas": 0}, (0, 0, 0)),
        ({"spec.scaling.mode": "Fixed", "spec.replicas": 3, "spec.scaling.maxReplicas": 9}, (3, 3, 3)),
        ({"spec.scaling.mode": "External"}, (None, 0, None)),
        ({"spec.scaling.mode": "External", "spec.replicas": 4}, (4, 0, 4)),
        ({"spec.scaling.minReplicas": 3}, (None, 3, 3)),
        ({"spec.scaling.maxReplicas": 5}, (None, 1, 5)),
        ({"spec.scaling.mode": "Recommend", "spec.scaling.maxReplicas": 5}, (None, 1, 5)),
    ],
)
def test_the_bounds_of_the_number_of_replicas(
    changes: Object, expected: tuple[int | None, int, int | None], changed: Callable[..., Object]
) -> None:
    resolved = effective(parse(changed(changes)).spec)
    assert (resolved.replicas, resolved.min_replicas, resolved.max_replicas) == expected


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("hf://a/b", "a/b"),
        ("pvc://models/llama-8b", "llama-8b"),
        ("pvc://models/org/llama-8b/", "llama-8b"),
        ("file:///models/tiny", "tiny"),
    ],
)
def test_a_model_has_a_name_that_clients_can_ask_for(
    uri: str, name: str, changed: Callable[..., Object]
) -> None:
    assert effective(parse(changed({"spec.model.uri": uri})).spec).served_names == (name,)
