"""The operator against a real API server, with engines that only a real Prometheus reaches."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from engine_sim.sim import body, simulated
from llamaserver.api.names import child_labels
from llamaserver.cluster import LeaseTimes
from llamaserver.controller import Options
from running_prometheus import running_prometheus
from workbench import Cluster, condition, eventually, running

NOWHERE = "192.0.2.1"
"""An address for documentation: nothing answers at it."""


async def test_what_prometheus_tells_is_in_the_status_and_so_is_its_silence(
    api_server: Any, namespace: str, tmp_path: Path, prometheus_programs: Path
) -> None:
    cluster = Cluster(api_server, namespace)
    server = cluster.server(metrics={"source": "Prometheus"})

    async def pod_of(name: str) -> None:
        labels = child_labels(name)
        await asyncio.to_thread(api_server.create_ready_pod, f"{name}-0", namespace, labels, NOWHERE)

    async with simulated() as sim:
        target = (
            f'{{targets: ["127.0.0.1:{sim.server.port}"], labels: {{namespace: {namespace}, pod: chat-0}}}}'
        )
        scrape = f"scrape_configs:\n- job_name: vllm\n  static_configs: [{target}]\n"
        with running_prometheus(prometheus_programs, tmp_path, scrape) as url:
            options = Options(
                namespace=namespace,
                watch_namespaces=(namespace,),
                identity="test-operator",
                kubeconfig=str(api_server.kubeconfig),
                tuner_image="llamaserver/tuner:test",
                lease_times=LeaseTimes(duration_s=9, renew_deadline_s=6, retry_s=0.5),
                tick_seconds=0.3,
                prometheus_url=url,
                http_host="127.0.0.1",
                http_port=0,
            )
            async with running(options):
                await cluster.apply(server)
                await eventually(lambda: cluster.get(cluster.deployment()))
                await pod_of("chat")
                await cluster.rolled_out()
                load = asyncio.create_task(sim.stream("/v1/completions", body(max_tokens=900, stream=True)))
                seen = await eventually(
                    lambda: cluster.get(server),
                    lambda it: "running" in it.get("status", {}).get("observed", {}),
                )
                load.cancel()
                available, tuned = condition(seen, "MetricsAvailable"), condition(seen, "Tuned")
                assert (available["status"], available["reason"]) == ("True", "AllPodsReport")
                assert available["message"] == (
                    "1 of 1 pods report; Prometheus scrapes them every 1 s, and nothing is decided more often"
                )
                assert (tuned["status"], tuned["reason"]) == ("False", "ActuatorUnavailable")
                assert "no cap and no budget is moved" in tuned["message"]
                assert seen["status"]["effective"]["metricsSource"] == "Prometheus"
                assert [pod["state"] for pod in seen["status"]["tuning"]["pods"]] == ["FromPrometheus"]

                other = cluster.server("other", metrics={"source": "Prometheus"})
                await cluster.apply(other)
                await eventually(lambda: cluster.get(cluster.deployment("other")))
                await pod_of("other")
                await cluster.rolled_out("other")
                unknown = await eventually(
                    lambda: cluster.get(other),
                    lambda it: condition(it, "MetricsAvailable").get("status") == "False",
                )
                silent = condition(unknown, "MetricsAvailable")
                assert silent["reason"] == "PrometheusSilent"
                assert f'(vllm:num_requests_running{{namespace="{namespace}"}}[210s])' in silent["message"]
                assert condition(unknown, "Ready")["status"] == "True", "figures are no part of being served"
