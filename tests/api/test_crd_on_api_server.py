"""The CRD on a real API server: the examples, unknown fields, the subresources, what people see."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from llamaserver.api import Condition, ConditionType, Status, parse, set_condition
from llamaserver.api.crd import crd
from llamaserver.api.enums import Binding
from llamaserver.api.names import selector_labels, selector_text
from llamaserver.api.status import (
    NOT_SEEN,
    Actuator,
    DecisionStatus,
    DiagnosisStatus,
    EffectiveStatus,
    EngineTuning,
    ObservedStatus,
    PodTuning,
    ScalingStatus,
    TuningStatus,
)

Object = dict[str, Any]
Changed = Callable[..., Object]

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.yaml"))
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _conditions() -> tuple[Condition, ...]:
    ready = set_condition((), ConditionType.READY, True, "Serving", "2 of 2", generation=1, now=NOW)
    return set_condition(ready, ConditionType.SLO_MET, False, "AtCapacity", "p95 60ms", generation=1, now=NOW)


def full_status() -> Status:
    """A status in which no field is left out."""
    return Status(
        observed_generation=1,
        conditions=_conditions(),
        replicas=2,
        ready_replicas=2,
        selector=selector_text("chat"),
        observed=ObservedStatus(
            inter_token_latency="41ms",
            inter_token_latency_mean="32ms",
            queue_time="0s",
            running=118,
            waiting=3,
            kv_cache_usage="0.63",
            preemptions_per_minute="0",
            tokens_per_second="3120",
        ),
        tuning=TuningStatus(
            num_seqs=96,
            ceiling=256,
            num_batched_tokens=1024,
            binding=Binding.PREFILL_BUDGET,
            prefill_budget="Live",
            actuator=Actuator.LIVE,
            pods=(
                PodTuning(
                    name="chat-1",
                    num_seqs=96,
                    state="Partial",
                    cause="RoutingImbalance",
                    engines=(
                        EngineTuning(index=0, num_seqs=96, running=96, waiting=3, kv_cache_usage="0.63"),
                        EngineTuning(index=1, num_seqs=256, running=22, waiting=0, kv_cache_usage="0.12"),
                    ),
                ),
            ),
        ),
        scaling=ScalingStatus(desired_replicas=2, reason="demand fits two"),
        diagnosis=DiagnosisStatus(
            cause="AtCapacity",
            message="waiting at the cap",
            advice="allow a third replica",
            since="2026-01-01T00:00:00Z",
            evidence={"cap": "96"},
        ),
        decisions=(
            DecisionStatus(
                time="2026-01-01T00:00:00Z",
                pod="chat-1",
                action="NumSeqs",
                from_="128",
                to="96",
                reason="p95 60ms > 50ms",
                evidence={"interTokenLatency": "60ms", "wanted": "96"},
                outcome="Applied: interTokenLatency 60ms -> 48ms; objectives met",
            ),
        ),
        effective=EffectiveStatus(
            served_names=("llama",),
            max_num_seqs=256,
            max_num_batched_tokens=2048,
            tensor_parallel_size=1,
            inter_token_latency="p95 <= 50ms",
            queue_time="p95 <= 5s",
            precedence="InterTokenLatency",
            tuning_mode="Auto",
            min_num_seqs=1,
            max_num_active_seqs=256,
            scaling_mode="Auto",
            min_replicas=1,
            max_replicas=4,
            startup_timeout="30m",
            drain_timeout="2m",
            termination_grace_period="150s",
        ),
        model={"a_s": "0.0065"},
    )


def documents(path: Path) -> list[Object]:
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_taken_strictly_and_unchanged(path: Path, api_server: Any, namespace: str) -> None:
    for obj in documents(path):
        obj["metadata"]["namespace"] = namespace
        for query in ("dryRun=All&fieldValidation=Strict", "fieldValidation=Strict"):
            answer = api_server.create(obj, query=query)
            assert answer.status == 201, answer.message
        if obj["kind"] == "LlamaServer":
            assert answer.body["spec"] == obj["spec"], "nothing is filled in, so GitOps sees no drift"
            parse(answer.body)


def test_kubectl_apply_refuses_an_unknown_field(minimal: Object, api_server: Any, namespace: str) -> None:
    minimal["metadata"]["namespace"] = namespace
    minimal["spec"]["slo"] = {"interTokenLatncy": {"target": "50ms"}}
    done = api_server.kubectl("apply", "-f", "-", stdin=json.dumps(minimal))
    assert done.returncode != 0
    assert 'unknown field "spec.slo.interTokenLatncy"' in done.stderr


def test_a_client_that_does_not_ask_loses_an_unknown_field(
    minimal: Object, api_server: Any, namespace: str
) -> None:
    minimal["metadata"]["namespace"] = namespace
    minimal["spec"]["slo"] = {"interTokenLatncy": {"target": "50ms"}}
    warned = api_server.create(minimal, query="fieldValidation=Warn")
    assert warned.status == 201
    assert any("interTokenLatncy" in warning for warning in warned.warnings)
    assert warned.body["spec"]["slo"] == {}


def test_the_whole_status_is_kept_by_the_server(minimal: Object, api_server: Any, namespace: str) -> None:
    minimal["metadata"]["namespace"] = namespace
    assert api_server.create(minimal).status == 201
    status = full_status().to_dict()
    bare = {key: minimal[key] for key in ("apiVersion", "kind", "metadata")}
    applied = api_server.apply({**bare, "status": status}, "llamaserver-operator", subresource="status")
    assert applied.status == 200, applied.message
    assert applied.body["status"] == status
    assert applied.body["metadata"]["generation"] == 1, "status is no change of the spec"
    assert parse(applied.body).status == full_status()


def test_the_status_subresource_writes_no_spec_and_the_resource_no_status(
    minimal: Object, api_server: Any, namespace: str
) -> None:
    minimal["metadata"]["namespace"] = namespace
    created = api_server.create({**minimal, "status": {"replicas": 7}})
    assert created.body["status"] == {"observedGeneration": NOT_SEEN}
    other = {**minimal, "spec": {**minimal["spec"], "suspend": True}, "status": {"replicas": 2}}
    applied = api_server.apply(other, "llamaserver-operator", subresource="status")
    assert applied.body["spec"] == minimal["spec"]
    assert applied.body["status"] == {"replicas": 2, "observedGeneration": NOT_SEEN}


def test_a_resource_that_nobody_has_seen_is_not_taken_for_ready(
    minimal: Object, api_server: Any, namespace: str
) -> None:
    """kstatus takes what has no status at all for ready, and an older observedGeneration for under way."""
    minimal["metadata"]["namespace"] = namespace
    api_server.create(minimal)
    made = api_server.get(minimal).body
    assert made["status"]["observedGeneration"] < made["metadata"]["generation"]
    assert parse(made).status == Status(observed_generation=NOT_SEEN)


def test_two_writers_of_conditions_do_not_overwrite_each_other(
    minimal: Object, api_server: Any, namespace: str
) -> None:
    minimal["metadata"]["namespace"] = namespace
    api_server.create(minimal)
    bare = {key: minimal[key] for key in ("apiVersion", "kind", "metadata")}
    for manager, kind in (("llamaserver-operator", ConditionType.READY), ("another", ConditionType.TUNED)):
        conditions = set_condition((), kind, True, "Why", "", generation=1, now=NOW)
        status = Status(conditions=conditions).to_dict()
        assert api_server.apply({**bare, "status": status}, manager, subresource="status").status == 200
    kept = api_server.get(minimal).body["status"]["conditions"]
    assert {condition["type"] for condition in kept} == {"Ready", "Tuned"}


class TestScale:
    """What `kubectl scale` and autoscalers do."""

    def test_an_autoscaler_reads_and_writes_the_number(
        self, changed: Changed, api_server: Any, namespace: str
    ) -> None:
        obj = changed({"metadata.namespace": namespace, "spec.scaling.mode": "External", "spec.replicas": 2})
        assert api_server.create(obj).status == 201
        bare = {key: obj[key] for key in ("apiVersion", "kind", "metadata")}
        status = Status(replicas=2, selector=selector_text("chat")).to_dict()
        api_server.apply({**bare, "status": status}, "llamaserver-operator", subresource="status")

        scale = api_server.get(obj, "scale")
        assert scale.status == 200
        assert scale.body["spec"] == {"replicas": 2}
        assert scale.body["status"] == {"replicas": 2, "selector": selector_text("chat")}

        scaled = api_server.merge(obj, {"spec": {"replicas": 5}}, "scale")
        assert scaled.status == 200, scaled.message
        assert api_server.get(obj).body["spec"]["replicas"] == 5

    def test_kubectl_scale_works_in_mode_fixed(
        self, changed: Changed, api_server: Any, namespace: str
    ) -> None:
        api_server.create(changed({"metadata.namespace": namespace, "spec.scaling.mode": "Fixed"}))
        done = api_server.kubectl("scale", "lls/chat", "--replicas=3", "-n", namespace)
        assert done.returncode == 0, done.stderr

    def test_in_mode_auto_it_is_refused_with_the_fields_to_use(
        self, changed: Changed, api_server: Any, namespace: str
    ) -> None:
        api_server.create(changed({"metadata.namespace": namespace}))
        done = api_server.kubectl("scale", "lls/chat", "--replicas=3", "-n", namespace)
        assert done.returncode != 0
        assert "spec.scaling.minReplicas and spec.scaling.maxReplicas" in done.stderr


class TestWhatPeopleSee:
    """kubectl explain and kubectl get."""

    def test_explain_says_what_a_field_means(self, api_server: Any) -> None:
        done = api_server.kubectl("explain", "llamaserver.spec.slo.interTokenLatency.target")
        assert done.returncode == 0, done.stderr
        assert "Upper bound of the inter-token latency, e.g. 50ms" in " ".join(done.stdout.split())

    def test_every_field_has_a_description_in_the_published_openapi(self, api_server: Any) -> None:
        published = api_server.request("GET", "/openapi/v3/apis/llamaserver.dev/v1alpha1").body
        schema = published["components"]["schemas"]["dev.llamaserver.v1alpha1.LlamaServer"]
        silent: list[str] = []
        count = 0

        def walk(node: Object, path: str) -> None:
            nonlocal count
            for name, field in node.get("properties", {}).items():
                count += 1
                if not field.get("description"):
                    silent.append(f"{path}.{name}")
                walk(field, f"{path}.{name}")
            for key in ("items", "additionalProperties"):
                if isinstance(node.get(key), dict):
                    walk(node[key], f"{path}[]")

        for part in ("spec", "status"):
            walk(schema["properties"][part], part)
        assert silent == []
        assert count > 100

    def test_get_shows_the_state_at_a_glance(self, changed: Changed, api_server: Any, namespace: str) -> None:
        obj = changed({"metadata.namespace": namespace, "spec.slo.interTokenLatency.target": "50ms"})
        api_server.create(obj)
        bare = {key: obj[key] for key in ("apiVersion", "kind", "metadata")}
        api_server.apply({**bare, "status": full_status().to_dict()}, subresource="status")
        done = api_server.kubectl("get", "lls", "-n", namespace)
        header, line = (text.split() for text in done.stdout.splitlines())
        columns = dict(zip(header[1:-1], line[1:-1], strict=True))
        assert columns == {
            "READY": "True",
            "STATUS": "Serving",
            "SLO": "False",
            "ITL": "41ms",
            "TARGET": "50ms",
            "CAP": "96",
            "REPLICAS": "2",
            "DIAGNOSIS": "AtCapacity",
        }
        wide = api_server.kubectl("get", "lls", "-n", namespace, "-o", "wide").stdout.splitlines()
        # A value may have blanks in it, so columns are told by where their heads begin.
        more = {
            head[0].rstrip(): wide[1][head.start() : head.end()].rstrip()
            for head in re.finditer(r"\S+\s*", wide[0])
        }
        assert {head: more[head] for head in ("BUDGET", "BINDS", "RUNNING", "WAITING")} == {
            "BUDGET": "1024",
            "BINDS": "PrefillBudget",
            "RUNNING": "118",
            "WAITING": "3",
        }
        by_category = api_server.kubectl("get", "llm", "-n", namespace, "-o", "name")
        assert by_category.stdout.split() == ["llamaserver.llamaserver.dev/chat"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_spec_that_a_revision_remembers_is_put_back_by_the_documented_command(
    path: Path, api_server: Any, namespace: str
) -> None:
    obj = next(one for one in yaml.safe_load_all(path.read_text()) if one["kind"] == "LlamaServer")
    obj["metadata"]["namespace"] = namespace
    name = obj["metadata"]["name"]
    labels = {"matchLabels": selector_labels(name)}
    pods = {
        "metadata": {"labels": selector_labels(name)},
        "spec": {"containers": [{"name": "a", "image": "a"}]},
    }
    spec = json.dumps(parse(obj).spec.to_dict(), sort_keys=True, separators=(",", ":"))
    annotations = {"llamaserver.dev/last-accepted-spec": spec}
    old = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": f"{name}-old", "namespace": namespace, "annotations": annotations},
        "spec": {"replicas": 0, "selector": labels, "template": pods},
    }
    assert api_server.create(old).status == 201
    changed_since = {**obj, "spec": {**obj["spec"], "engine": {"image": "vllm/vllm-openai:broken"}}}
    changed_since["spec"].pop("accelerator", None)
    made = api_server.create(changed_since)
    assert made.status == 201, made.message

    query = "jsonpath={.metadata.annotations.llamaserver\\.dev/last-accepted-spec}"
    read = api_server.kubectl("get", f"replicaset/{name}-old", "-n", namespace, "-o", query)
    patch = f'[{{"op": "replace", "path": "/spec", "value": {read.stdout}}}]'
    done = api_server.kubectl("patch", f"lls/{name}", "-n", namespace, "--type", "json", "-p", patch)
    assert done.returncode == 0, done.stderr
    assert parse(api_server.get(obj).body).spec == parse(obj).spec


@pytest.mark.parametrize(
    ("ready", "reason", "met", "cause"),
    [
        (True, "Serving", False, "PrefillInterference"),
        (False, "ProgressDeadlineExceeded", None, "Idle"),
        (False, "AcceleratorMemoryInUse", None, "Stalled"),
    ],
)
def test_whether_it_is_well_and_if_not_why_fits_on_a_line(
    ready: bool, reason: str, met: bool | None, cause: str, changed: Changed, api_server: Any, namespace: str
) -> None:
    name = "chat-in-production-8b"
    obj = changed(
        {
            "metadata.namespace": namespace,
            "metadata.name": name,
            "spec.slo.interTokenLatency.target": "1.25s",
        }
    )
    api_server.create(obj)
    conditions = set_condition((), ConditionType.READY, ready, reason, "", generation=1, now=NOW)
    conditions = set_condition(conditions, ConditionType.SLO_MET, met, "Why", "", generation=1, now=NOW)
    status = Status(
        conditions=conditions,
        replicas=128,
        observed=ObservedStatus(inter_token_latency=">=1.2s" if ready else None),
        tuning=TuningStatus(num_seqs=1024),
        diagnosis=DiagnosisStatus(cause=cause),
    )
    bare = {key: obj[key] for key in ("apiVersion", "kind", "metadata")}
    assert api_server.apply({**bare, "status": status.to_dict()}, subresource="status").status == 200
    lines = api_server.kubectl("get", "lls", "-n", namespace).stdout.splitlines()
    assert max(map(len, lines)) <= 120
    assert reason in lines[1]
    assert cause in lines[1]


def test_the_crd_is_structural_and_its_names_are_taken(api_server: Any) -> None:
    conditions = api_server.get(crd()).body["status"]["conditions"]
    states = {condition["type"]: condition["status"] for condition in conditions}
    assert states["Established"] == "True"
    assert states["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in states
