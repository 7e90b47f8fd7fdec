"""Mistakes about objectives, times, numbers of replicas, accelerators, nodes and names."""

from __future__ import annotations

from specs.mistake import GPU, Bad

DURATION = "write a positive number and one unit"
SPREAD = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}

BAD = {
    "a duration without a unit": Bad(
        {"spec.slo.interTokenLatency.target": "50"},
        "spec.slo.interTokenLatency.target",
        f"{DURATION} (ms, s, m or h)",
    ),
    "a duration with a space": Bad(
        {"spec.slo.interTokenLatency.target": "50 s"}, "spec.slo.interTokenLatency.target", "e.g. 50ms"
    ),
    "a scope in lower case": Bad(
        {"spec.slo.interTokenLatency": {"target": "50ms", "scope": "request"}},
        "spec.slo.interTokenLatency.scope",
        "Request",
    ),
    "a negative duration": Bad({"spec.slo.queueTime.target": "-1ms"}, "spec.slo.queueTime.target", DURATION),
    "a duration of nothing": Bad(
        {"spec.slo.queueTime.target": "0.0s"}, "spec.slo.queueTime.target", DURATION
    ),
    "a Go duration of two units": Bad({"spec.startup.timeout": "1m30s"}, "spec.startup.timeout", DURATION),
    "a rollout that cannot move": Bad(
        {"spec.rollout": {"maxUnavailable": 0}}, "spec.rollout.maxUnavailable", "set one of the two to 1"
    ),
    "a surge of a share": Bad({"spec.rollout.maxSurge": "25%"}, "spec.rollout.maxSurge", ""),
    "a start of a week": Bad({"spec.startup.timeout": "168h"}, "spec.startup.timeout", "must be at most 24h"),
    "a drain of two days": Bad(
        {"spec.shutdown.drainTimeout": "2880m"}, "spec.shutdown.drainTimeout", "at most 24h"
    ),
    "a stall as short as a step": Bad(
        {"spec.recovery.replaceStalledAfter": "119s"},
        "spec.recovery.replaceStalledAfter",
        "must be at least 2m",
    ),
    "a stall of two days": Bad(
        {"spec.recovery.replaceStalledAfter": "48h"},
        "spec.recovery.replaceStalledAfter",
        "leave it out to have no pod replaced",
    ),
    "restarts every minute": Bad(
        {"spec.tuning.restart.minInterval": "60s"},
        "spec.tuning.restart.minInterval",
        "what came of it measured, before the next",
    ),
    "a restart a month": Bad(
        {"spec.tuning.restart.minInterval": "720h"},
        "spec.tuning.restart.minInterval",
        "leave spec.tuning.restart out",
    ),
    "restarts as often as they like": Bad(
        {"spec.tuning.restart": {}}, "spec.tuning.restart.minInterval", "equired"
    ),
    "an unknown statistic": Bad(
        {"spec.slo.interTokenLatency": {"target": "50ms", "statistic": "p999"}},
        "spec.slo.interTokenLatency.statistic",
        "p95",
    ),
    "an unknown statistic of the queue": Bad(
        {"spec.slo.queueTime": {"target": "5s", "statistic": "max"}}, "spec.slo.queueTime.statistic", "p95"
    ),
    "an unknown precedence": Bad(
        {"spec.slo.precedence": "interTokenLatency"}, "spec.slo.precedence", "InterTokenLatency"
    ),
    "an unknown mode of tuning": Bad({"spec.tuning.mode": "On"}, "spec.tuning.mode", "Auto"),
    "an unknown budget": Bad({"spec.tuning.prefillBudget": 2048}, "spec.tuning.prefillBudget", ""),
    "an unknown word for a budget": Bad(
        {"spec.tuning.prefillBudget": "fixed"}, "spec.tuning.prefillBudget", "Fixed"
    ),
    "figures from elsewhere": Bad({"spec.metrics.source": "Grafana"}, "spec.metrics.source", "Prometheus"),
    "suspended by a word": Bad({"spec.suspend": "yes"}, "spec.suspend", ""),
    "an unknown mode": Bad({"spec.scaling.mode": "auto"}, "spec.scaling.mode", "Auto"),
    "replicas that nobody would read": Bad(
        {"spec.replicas": 3}, "spec.replicas", "spec.scaling.minReplicas and spec.scaling.maxReplicas"
    ),
    "replicas in mode Recommend": Bad(
        {"spec.replicas": 3, "spec.scaling.mode": "Recommend"}, "spec.replicas", "Fixed or External"
    ),
    "more replicas at least than at most": Bad(
        {"spec.scaling": {"minReplicas": 4, "maxReplicas": 2}},
        "spec.scaling.minReplicas",
        "lower minReplicas or raise maxReplicas",
    ),
    "no replica at most": Bad({"spec.scaling.maxReplicas": 0}, "spec.scaling.maxReplicas", "1"),
    "no replica at least": Bad({"spec.scaling.minReplicas": 0}, "spec.scaling.minReplicas", "1"),
    "a lower cap above the upper": Bad(
        {"spec.tuning.numSeqs": {"min": 64, "max": 32}}, "spec.tuning.numSeqs.min", "lower min or raise max"
    ),
    "a cap above the ceiling": Bad(
        {"spec.tuning.numSeqs": {"max": 512}}, "spec.tuning.numSeqs.max", "spec.engine.maxNumSeqs"
    ),
    "a least cap above the ceiling": Bad(
        {"spec.tuning.numSeqs": {"min": 65}, "spec.engine.maxNumSeqs": 64},
        "spec.tuning.numSeqs.min",
        "raise maxNumSeqs",
    ),
    "fewer workers than accelerators": Bad(
        {"spec.accelerator": {**GPU, "count": 4}},
        "spec.engine.tensorParallelSize",
        "must equal spec.accelerator.count",
    ),
    "more workers than accelerators": Bad(
        {"spec.accelerator": GPU, "spec.engine.tensorParallelSize": 2},
        "spec.engine.tensorParallelSize",
        "set both alike",
    ),
    "workers without accelerators": Bad(
        {"spec.engine.tensorParallelSize": 2}, "spec.engine.tensorParallelSize", "set spec.accelerator.count"
    ),
    "two MIG slices": Bad(
        {
            "spec.accelerator": {"resourceName": "nvidia.com/mig-1g.10gb", "count": 2},
            "spec.engine.tensorParallelSize": 2,
        },
        "spec.accelerator.count",
        "set spec.accelerator.count: 1",
    ),
    "a resource without its vendor": Bad(
        {"spec.accelerator": {"resourceName": "gpu", "count": 1}},
        "spec.accelerator.resourceName",
        "e.g. nvidia.com/gpu",
    ),
    "accelerators asked for in two ways": Bad(
        {"spec.accelerator": {**GPU, "resourceClaimTemplateName": "gpu"}},
        "spec.accelerator",
        "set exactly one of resourceName",
    ),
    "accelerators of no kind": Bad(
        {"spec.accelerator": {"count": 1}}, "spec.accelerator", "set exactly one of resourceName"
    ),
    "accelerators asked for twice": Bad(
        {"spec.accelerator": GPU, "spec.engine.resources.limits": {"nvidia.com/gpu": 1}},
        "spec.engine.resources",
        "belongs to spec.accelerator",
    ),
    "accelerators by a template that can have no such name": Bad(
        {"spec.accelerator": {"resourceClaimTemplateName": "two_gpus", "count": 1}},
        "spec.accelerator.resourceClaimTemplateName",
        "write the name of an object",
    ),
    **{
        f"a {field} that can have no such name": Bad(
            {f"spec.scheduling.{field}": "Mine"}, f"spec.scheduling.{field}", "write the name of an object"
        )
        for field in ("schedulerName", "runtimeClassName", "priorityClassName", "serviceAccountName")
    },
    "a pull secret by its path": Bad(
        {"spec.scheduling.imagePullSecrets": [{"name": "registry/secret"}]},
        "spec.scheduling.imagePullSecrets[0].name",
        "write the name of an object",
    ),
    "a node by a value that no label has": Bad(
        {"spec.scheduling.nodeSelector": {"nvidia.com/gpu.product": "NVIDIA H100"}},
        "spec.scheduling.nodeSelector",
        "write a label's value",
    ),
    "a node by a truth": Bad(
        {"spec.scheduling.nodeSelector": {"gpu": True}}, "spec.scheduling.nodeSelector.gpu", ""
    ),
    **{
        f"a {field} that is a list": Bad(
            {f"spec.scheduling.affinity.{field}": [{"nodeSelectorTerms": []}]},
            f"spec.scheduling.affinity.{field}",
            "",
        )
        for field in ("nodeAffinity", "podAffinity", "podAntiAffinity")
    },
    "a spread over what is no label": Bad(
        {"spec.scheduling.topologySpreadConstraints": [{**SPREAD, "topologyKey": "the zone"}]},
        "spec.scheduling.topologySpreadConstraints[0].topologyKey",
        "write a label's key",
    ),
    "a spread over no domain": Bad(
        {"spec.scheduling.topologySpreadConstraints": [{**SPREAD, "minDomains": 0}]},
        "spec.scheduling.topologySpreadConstraints[0].minDomains",
        "1",
    ),
    "a toleration of what is no taint": Bad(
        {"spec.scheduling.tolerations": [{"key": "nvidia.com/gpu=", "operator": "Exists"}]},
        "spec.scheduling.tolerations[0].key",
        "write a label's key",
    ),
    "a toleration of an unknown effect": Bad(
        {"spec.scheduling.tolerations": [{"key": "a", "effect": "NoSchedul"}]},
        "spec.scheduling.tolerations[0].effect",
        "NoSchedule",
    ),
    "a toleration for a time with a unit": Bad(
        {"spec.scheduling.tolerations": [{"key": "a", "tolerationSeconds": "5m"}]},
        "spec.scheduling.tolerations[0].tolerationSeconds",
        "",
    ),
    "one spread twice": Bad(
        {"spec.scheduling.topologySpreadConstraints": [SPREAD, SPREAD]},
        "spec.scheduling.topologySpreadConstraints[1]",
        "",
    ),
    "a toleration that compares nothing": Bad(
        {"spec.scheduling.tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
        "spec.scheduling.tolerations[0].value",
        "remove value, or set operator: Equal",
    ),
    "a toleration of every key by value": Bad(
        {"spec.scheduling.tolerations": [{"effect": "NoSchedule"}]},
        "spec.scheduling.tolerations[0].operator",
        "operator must be Exists",
    ),
    "a name that no Service can have": Bad(
        {"metadata.name": "chat.prod"}, "metadata.name", "the Service has the same"
    ),
    "a name that starts with a digit": Bad(
        {"metadata.name": "8b-chat"}, "metadata.name", "start with a letter"
    ),
}
