"""A spec that cannot be served never touches what serves now."""

from __future__ import annotations

import pytest

from harness.fleet import Fleet
from harness.kube import KubeError, Object


def deployment(fleet: Fleet) -> Object:
    found = fleet.kube.get("deployment", fleet.name, fleet.namespace)
    assert found is not None, "the Deployment is gone"
    return found


def test_a_managed_flag_is_refused_with_the_field_to_use(alone: Fleet) -> None:
    before = deployment(alone)
    engines = alone.engines()
    resource = alone.resource()
    resource["spec"]["engine"]["extraArgs"] += ["--max-num-seqs", "64"]
    with pytest.raises(KubeError, match="maxNumSeqs"):
        alone.apply(resource)
    assert deployment(alone)["metadata"]["generation"] == before["metadata"]["generation"]
    assert alone.engines() == engines


def test_what_only_the_operator_can_tell_is_said_in_the_status(alone: Fleet) -> None:
    before = deployment(alone)
    engines = alone.engines()
    resource = alone.resource()
    # An abbreviation that argparse would take for --max-num-seqs; the API server's rules know whole names
    # only.
    resource["spec"]["engine"]["extraArgs"].append("--max-num-se=64")
    alone.apply(resource)
    said = alone.wait_condition("Accepted", "False", 30, reason="InvalidSpec")
    assert "spec.engine.maxNumSeqs" in said["message"]
    assert alone.status()["observedGeneration"] == alone.get()["metadata"]["generation"]
    assert deployment(alone)["metadata"]["generation"] == before["metadata"]["generation"]
    assert alone.engines() == engines

    alone.apply(alone.resource())
    alone.wait_condition("Accepted", "True", 30)
    alone.wait_ready(timeout=30)
    assert alone.engines() == engines
