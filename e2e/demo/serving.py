"""The demo's LlamaServer: the resource as it is applied, and what is shown of it."""

from __future__ import annotations

from typing import Any

from demo.progress import Progress
from demo.settings import Settings
from harness.kube import Kube
from harness.manifests import llamaserver
from harness.server import Server

NAME = "chat"
TOLD_EVERY_S = 10.0
EVENTS = 12


class Serving(Server):
    """One LlamaServer with one replica."""

    def __init__(self, kube: Kube, settings: Settings, progress: Progress) -> None:
        super().__init__(kube, NAME, settings.namespace)
        self._settings, self._progress = settings, progress

    def declare(
        self, tuning: str, objective: dict[str, Any] | None, prefill_budget: str | None = None
    ) -> None:
        """Apply the whole resource, as a user would, and wait until the operator has seen it."""
        settings = self._settings
        self.apply(
            llamaserver(
                NAME,
                settings.namespace,
                image=settings.engine_image,
                runtime_class=settings.runtime_class,
                tuning=tuning,
                prefill_budget=prefill_budget,
                objective=objective,
            )
        )
        self.wait_seen()

    def wait_serving(self) -> None:
        """Wait until the engine serves, and say every few seconds what it waits for."""
        told = self._progress.elapsed

        def tell(message: str) -> None:
            nonlocal told
            if self._progress.elapsed - told > TOLD_EVERY_S:
                told = self._progress.elapsed
                self._progress.say(f"  still starting: {message}")

        self.wait_ready(tell)

    def table(self, *flags: str) -> str:
        """What `kubectl get lls` prints."""
        return self.kube.kubectl("get", "lls", "-n", self.namespace, *flags)

    def decisions(self) -> tuple[str, ...]:
        """The last decisions in the status, oldest first, one line each."""
        return tuple(
            f"{d['time']}  {d['action']} {d.get('from', '?')} -> {d.get('to', '?')}: {d['reason']}"
            for d in reversed(self.status().get("decisions", []))
        )

    def events(self) -> tuple[str, ...]:
        """The last events about the resource, oldest first, one line each."""
        uid = self.get()["metadata"]["uid"]
        items = [
            event
            for event in self.kube.list("event", self.namespace)
            if event.get("involvedObject", {}).get("uid") == uid
        ]
        items.sort(key=lambda e: e.get("lastTimestamp") or e.get("eventTime") or "")
        return tuple(
            f"{e.get('type', '')}  {e.get('reason', '')}: {e.get('message', '')}" for e in items[-EVENTS:]
        )
