"""Policies by name: who sets the caps, and who the replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from llamaserver.api.enums import TuningMode
from llamaserver.observe import Sample
from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.rules.aibrix import ApaKvUsage, KpaKvUsage
from llamaserver.simulate.rules.caps import AIMD, Bisection, Gradient2, SlewedBisection, Static
from llamaserver.simulate.rules.dynamo import DynamoLoad, DynamoThroughput
from llamaserver.simulate.rules.foresight import Foresight
from llamaserver.simulate.rules.queueing import QueueingWVA
from llamaserver.simulate.rules.scaling import KedaKvQueue, QueueHPA, SaturationWVA
from llamaserver.simulate.rules.seen import CapRule, ReplicaRule
from llamaserver.simulate.world import untouched

LAW, LAW_CAP, BEST_CAP, BEST_PAIR = "llamaserver", "llamaserver-cap", "best-cap", "best-pair"
CAPS: dict[str, CapRule] = {
    "default": Static(),
    "aimd": AIMD(),
    "gradient2": Gradient2(),
    "alg2": Bisection(),
    "mindie": SlewedBisection(),
}
SCALERS: dict[str, ReplicaRule] = {
    "hpa": QueueHPA(),
    "keda": KedaKvQueue(),
    "wva": SaturationWVA(),
    "wva-queueing": QueueingWVA(),
    "dynamo-load": DynamoLoad(),
    "dynamo-throughput": DynamoThroughput(),
    "apa": ApaKvUsage(),
    "kpa": KpaKvUsage(),
    "oracle": Foresight(),
}
SAYS = {
    LAW: "this operator: cap and prefill budget, and replicas between --min and --max",
    LAW_CAP: "this operator with prefillBudget Fixed: the cap alone",
    "default": "vLLM as it starts: every place and the whole budget",
    BEST_CAP: "the best fixed cap of those tried in hindsight: at most 5 % of windows missed",
    BEST_PAIR: "the best fixed pair of cap and budget of those tried in hindsight, likewise (slow)",
    "aimd": "additive increase, multiplicative decrease (Netflix concurrency-limits)",
    "gradient2": "Gradient2 (Netflix concurrency-limits), rests above the objective by construction",
    "alg2": "Algorithm 2 of arXiv 2503.05248",
    "mindie": "the dynamic batch size of MindIE-LLM",
}
SCALERS_SAY = {
    "hpa": "a HorizontalPodAutoscaler on waiting requests",
    "keda": "KEDA on waiting requests and the use of the KV cache",
    "wva": "the saturation rule of llm-d's Workload Variant Autoscaler",
    "wva-queueing": "the queueing model of llm-d's Workload Variant Autoscaler",
    "dynamo-load": "the load mode of NVIDIA Dynamo's planner",
    "dynamo-throughput": "the throughput mode of NVIDIA Dynamo's planner",
    "apa": "AIBrix's APA on the use of the KV cache",
    "kpa": "AIBrix's KPA on the use of the KV cache",
    "oracle": "who knows the demand and what a replica serves: what regret is told against",
}
USUAL = ("default", BEST_CAP, "aimd", "alg2", LAW_CAP, LAW)


@dataclass(frozen=True)
class Policy:
    """A cap policy and, maybe, a replica policy; `caps` None is the law."""

    name: str
    caps: CapRule | None
    replicas: ReplicaRule | None = None
    budget_moves: bool = True
    hindsight: bool = False
    """Whether `caps` still has to be searched for."""
    tuning: TuningMode = TuningMode.AUTO
    """Of the law."""
    scales: bool = True
    """Whether the law may set the replicas, where nobody else does."""
    shown: Callable[[Sample], Sample] = untouched
    """What is made of a sample before the policy sees it."""

    def settled(self, caps: Static) -> Policy:
        """The same after the search."""
        return replace(self, caps=caps, hindsight=False)


def policy(name: str) -> Policy:
    """A policy by its name, such as `aimd` or, with a replica policy, `aimd+hpa`. Raises SimulationError."""
    caps, _, scaler = name.partition("+")
    if caps not in SAYS:
        raise SimulationError(f"there is no policy {caps!r}; there are {', '.join(SAYS)}")
    if scaler and scaler not in SCALERS:
        raise SimulationError(f"there is no replica policy {scaler!r}; there are {', '.join(SCALERS)}")
    return Policy(
        name=name,
        caps=CAPS.get(caps),
        replicas=SCALERS[scaler] if scaler else None,
        budget_moves=caps != LAW_CAP,
        hindsight=caps in (BEST_CAP, BEST_PAIR),
    )


def policies(text: str) -> list[Policy]:
    """A comma-separated list of names; `all` stands for every cap policy."""
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        names += list(SAYS) if part == "all" else [part] if part else []
    if not names:
        raise SimulationError(f"no policy is named; there are {', '.join(SAYS)}")
    return [policy(name) for name in dict.fromkeys(names)]
