"""Command lines and configuration of the node's programs hang together."""

import ipaddress
import json
from pathlib import Path

import pytest

from cluster import binaries, components, pki
from cluster.plan import Plan
from cluster.settings import PACKAGE, Settings

SETTINGS = Settings(name="node", cache=Path("/cache"), state=Path("/state"))
PROGRAMS = Path("/cache/bin/all")
FILES = components.configuration(SETTINGS, engine_spec=True)


@pytest.fixture
def plan() -> Plan:
    return components.make_plan(SETTINGS, PROGRAMS)


def flags(plan: Plan, name: str) -> dict[str, str]:
    """Flags of a component by name."""
    (component,) = (component for component in plan.components if component.name == name)
    return dict(argument.lstrip("-").split("=", 1) for argument in component.argv[1:] if "=" in argument)


def test_a_plan_is_read_back_as_it_was_written(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan.to_json())
    assert Plan.load(tmp_path / "plan.json") == plan


def test_every_program_of_the_plan_is_built_or_a_debian_package(plan: Plan) -> None:
    built = {program for module in binaries.MODULES for program in module.programs}
    for component in plan.components:
        program = Path(component.argv[0])
        assert program.name in built if program.parent == PROGRAMS else program == Path("/usr/bin/containerd")


def test_every_certificate_a_component_is_given_is_made(plan: Plan) -> None:
    made = {
        f"{certificate.name}.{kind}" for certificate in pki.certificates(SETTINGS) for kind in ("crt", "key")
    }
    made |= {f"{user}.conf" for user in pki.KUBECONFIGS} | {"sa.key", "sa.pub"}
    made |= {f"{authority}.{kind}" for authority in pki.AUTHORITIES for kind in ("crt", "key")}
    words = [value for component in plan.components for value in flags(plan, component.name).values()]
    text = " ".join(words) + json.dumps(FILES)
    used = {
        word.split("/state/pki/")[1].split('"')[0].strip("\\")
        for word in text.split()
        if "/state/pki/" in word
    }
    assert used
    assert used <= made


def test_service_addresses_lie_in_the_range_of_services(plan: Plan) -> None:
    services = ipaddress.ip_network(flags(plan, "kube-apiserver")["service-cluster-ip-range"])
    assert ipaddress.ip_address(SETTINGS.dns_ip) in services
    assert (
        ipaddress.ip_address(SETTINGS.api_service_ip) == services[1]
    )  # what the API server takes for itself
    assert json.loads(FILES["kubelet.json"])["clusterDNS"] == [SETTINGS.dns_ip]
    assert f"clusterIP: {SETTINGS.dns_ip}\n" in (PACKAGE / "manifests" / "coredns.yaml").read_text()


def test_the_three_ranges_do_not_overlap() -> None:
    node = ipaddress.ip_interface(f"{SETTINGS.node_ip}/{SETTINGS.node_prefix}").network
    pods, services = ipaddress.ip_network(SETTINGS.pod_cidr), ipaddress.ip_network(SETTINGS.service_cidr)
    assert not node.overlaps(pods)
    assert not node.overlaps(services)
    assert not pods.overlaps(services)


def test_the_runtime_class_names_a_runtime_that_is_there_only_with_the_engine() -> None:
    handler = f"runtimes.{components.ENGINE_RUNTIME}]"
    assert handler in FILES["containerd.toml"]
    assert handler not in components.configuration(SETTINGS, engine_spec=False)["containerd.toml"]
    manifest = (PACKAGE / "manifests" / "runtimeclass.yaml").read_text()
    assert f"handler: {components.ENGINE_RUNTIME}\n" in manifest


def test_the_engine_runtime_adds_a_read_only_mount_to_an_ordinary_container() -> None:
    proc = {"destination": "/proc", "type": "proc", "source": "proc"}
    default = json.dumps({"process": {"cwd": "/", "rlimits": [{"type": "RLIMIT_NOFILE"}]}, "mounts": [proc]})
    spec = json.loads(components.engine_runtime_spec(default, Path("/cache/engine-venv/x")))
    ordinary, engine = spec["mounts"]
    assert ordinary == proc
    assert (engine["source"], engine["destination"]) == ("/cache/engine-venv/x", "/opt/vllm")
    assert "ro" in engine["options"]
    assert spec["process"] == {"cwd": "/"}
