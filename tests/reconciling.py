"""One look of a reconciler, with an API server that keeps what is applied and refuses what it is told to."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from llamaserver.api.names import child_labels
from llamaserver.cluster import ApiError, ConflictError, EventType, Reference
from llamaserver.cluster.kinds import DEPLOYMENT, LLAMASERVER, POD, Kind, Object, kind_of
from llamaserver.controller.cache import Cache
from llamaserver.controller.children import Children
from llamaserver.controller.queue import Key
from llamaserver.controller.reconcile import Parts, Reconciler
from llamaserver.controller.recovery import Recovery
from llamaserver.controller.restart import Restarts
from llamaserver.controller.runtime import Registry, Server
from llamaserver.controller.scaledown import ScaleDown
from llamaserver.desired import BuildSettings
from llamaserver.telemetry import Metrics

KEY = Key("ns", "chat")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Api:
    """Keeps objects by kind and name. Nothing it keeps reaches a watch."""

    def __init__(self) -> None:
        self.objects: dict[tuple[Kind, str], Object] = {}
        self.refuses: dict[Kind, ApiError] = {}
        self.refuses_creation: dict[Kind, ApiError] = {}
        self.statuses: list[Object] = []
        self.calls: list[tuple[str, str]] = []
        """Verb and kind of each call, those that are refused too."""
        self.version = 100

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        self.calls.append(("get", kind.kind))
        if kind in self.refuses:
            raise self.refuses[kind]
        return copy.deepcopy(self.objects.get((kind, name)))

    async def apply(self, obj: Object, *, manager: str = "", force: bool = True) -> Object:
        self.calls.append(("apply", kind_of(obj).kind))
        kind, name = kind_of(obj), obj["metadata"]["name"]
        live = self.objects.get((kind, name), {"metadata": {"generation": 0, "uid": f"uid-{name}"}})
        if obj["metadata"].get("uid", live["metadata"]["uid"]) != live["metadata"]["uid"]:
            raise ConflictError(409, "Conflict", "uid mismatch")
        return self._keep(obj, live)

    async def create(self, obj: Object) -> Object:
        self.calls.append(("create", kind_of(obj).kind))
        kind, name = kind_of(obj), obj["metadata"]["name"]
        if kind in self.refuses_creation:
            raise self.refuses_creation[kind]
        if (kind, name) in self.objects:
            raise ConflictError(409, "Conflict", "the object has been modified")
        return self._keep(obj, {"metadata": {"generation": 0, "uid": f"uid-{name}"}})

    def _keep(self, obj: Object, live: Object) -> Object:
        kind, name = kind_of(obj), obj["metadata"]["name"]
        if kind in self.refuses:
            raise self.refuses[kind]
        self.version += 1
        counted = {"generation": live["metadata"]["generation"] + 1, "resourceVersion": str(self.version)}
        kept = {**copy.deepcopy(obj), "metadata": {**live["metadata"], **obj["metadata"], **counted}}
        self.objects[kind, name] = kept | {"status": live.get("status", {})}
        return copy.deepcopy(self.objects[kind, name])

    async def apply_status(self, obj: Object) -> Object:
        self.calls.append(("apply", "status"))
        self.statuses.append(copy.deepcopy(obj["status"]))
        return obj

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        self.objects.pop((kind, name), None)


class Started:
    """In the place of the ticker."""

    def __init__(self) -> None:
        self.servers: list[Server] = []

    def start(self, server: Server) -> None:
        self.servers.append(server)


class Told:
    """In the place of the recorder: what was announced, and what the Deployment was like at that moment."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.events: list[tuple[str, str, str]] = []
        self.deployed: list[Object | None] = []

    def emit(self, about: Reference, kind: EventType, reason: str, message: str) -> bool:
        self.events.append((str(kind), reason, message))
        self.deployed.append(copy.deepcopy(self.api.objects.get((DEPLOYMENT, "chat"))))
        return True

    def about(self, reason: str) -> list[tuple[str, str]]:
        """Kind and message of every event with this reason."""
        return [(kind, message) for kind, told, message in self.events if told == reason]


class Bench:
    """A reconciler and what it works with."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.api: Any = Api()
        self.cache = Cache(monotonic)
        self.registry = Registry()
        self.ticker: Any = Started()
        self.told = Told(self.api)
        self.generation = 0
        self.wall = NOW
        parts = Parts(
            kube=self.api,
            cache=self.cache,
            registry=self.registry,
            children=Children(self.api, self.cache),
            scale_down=ScaleDown(self.api, self.cache, self.told, monotonic),  # type: ignore[arg-type]
            recovery=Recovery(
                self.api,
                self.cache,
                self.registry,
                self.told,  # type: ignore[arg-type]
                Metrics(),
                monotonic,
                lambda: self.wall,
            ),
            restarts=Restarts(self.cache, Metrics(), monotonic, lambda: self.wall),
            recorder=self.told,  # type: ignore[arg-type]
            metrics=Metrics(),
            settings=lambda: BuildSettings(tuner_image="tuner:1", public_keys={"k": "pem"}),
            monotonic=monotonic,
            wall=lambda: self.wall,
        )
        self.reconciler = Reconciler(parts, ticker=self.ticker)

    def declare(self, **spec: Any) -> None:
        """The LlamaServer as the watches tell of it."""
        self.generation += 1
        base = {"model": {"uri": "hf://org/model"}, "engine": {"image": "vllm/vllm-openai:v0.32.0"}}
        metadata = {
            "namespace": "ns",
            "name": "chat",
            "uid": "uid-server",
            "generation": self.generation,
            "resourceVersion": str(self.generation),
        }
        self.cache.put(
            LLAMASERVER,
            {
                "apiVersion": LLAMASERVER.api_version,
                "kind": LLAMASERVER.kind,
                "metadata": metadata,
                "spec": base | spec,
            },
        )

    def rolled_out(self, updated: int | None = None, ready: int | None = None) -> None:
        """The Deployment's controller is done, or has `updated` pods of the present template and `ready` that
        serve, and the watches have told.
        """
        live = self.api.objects[DEPLOYMENT, "chat"]
        count = live["spec"]["replicas"]
        self.api.version += 1
        live["metadata"]["resourceVersion"] = str(self.api.version)
        live["status"] = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), count)
        live["status"]["updatedReplicas"] = count if updated is None else updated
        live["status"]["readyReplicas"] = count if ready is None else ready
        live["status"]["observedGeneration"] = live["metadata"]["generation"]
        self.cache.put(DEPLOYMENT, live)

    def ready_pod(self, name: str) -> None:
        """A pod that serves, as the watches tell of it."""
        metadata = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "labels": child_labels("chat")}
        ready = [{"type": type_, "status": "True"} for type_ in ("PodScheduled", "Ready")]
        engine = {"name": "vllm", "ready": True, "started": True, "restartCount": 0}
        status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": ready, "containerStatuses": [engine]}
        self.cache.put(POD, {"metadata": metadata, "status": status})

    def restarted(self) -> None:
        """Another operator takes over, which knows what the watches tell: the last status among that."""
        found = self.cache.server(KEY)
        assert found is not None
        self.cache.put(LLAMASERVER, {**found, "status": self.api.statuses[-1]})
        self.registry.drop(KEY)
        self.reconciler.parts.children.forget(KEY)

    async def look(self) -> float | None:
        return await self.reconciler.look(KEY)

    def replicas(self) -> int:
        count: int = self.api.objects[DEPLOYMENT, "chat"]["spec"]["replicas"]
        return count

    @property
    def server(self) -> Server:
        found = self.registry.get(KEY)
        assert found is not None
        return found

    def condition(self, type_: str) -> Object:
        conditions: list[Object] = self.api.statuses[-1]["conditions"]
        return next(one for one in conditions if one["type"] == type_)
