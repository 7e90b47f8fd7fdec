"""Command lines and configuration files of the node's programs.

Flags are here because this node is one of many on a shared machine: no swap or cgroup demands, no garbage
collection of images that no registry could bring back, no sysctl outside its own namespaces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from cluster.pki import FRONT_PROXY, FRONT_PROXY_CA
from cluster.plan import Component, Plan
from cluster.settings import REPOSITORY, Settings

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CNI_PROGRAMS = "/usr/lib/cni"
PAUSE_IMAGE = "localhost/llamaserver/pause:dev"
ENGINE_RUNTIME = "vllm"
"""Name of the containerd runtime, and of the RuntimeClass, that brings the engine's environment along."""
ENGINE_ENVIRONMENT = "/opt/vllm"
"""Where containers of that runtime see it."""

OPEN_FILES = 20_000
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# A thousand pods come up in 14 s with these, and in 69 s with the defaults.
API_CLIENT_RATE = ("--kube-api-qps=300", "--kube-api-burst=600")


def make_plan(settings: Settings, programs: Path) -> Plan:
    """The programs of the node in the order of their start."""
    return Plan(
        name=settings.name,
        state=str(settings.state),
        node_address=f"{settings.node_ip}/{settings.node_prefix}",
        service_cidr=settings.service_cidr,
        visible=(str(settings.state), str(settings.cache), str(REPOSITORY)),
        path=f"{programs}:{SYSTEM_PATH}",
        components=tuple(_components(settings, programs)),
    )


def _components(settings: Settings, programs: Path) -> Iterator[Component]:
    # The kubelet exits when there is no CRI socket yet, the controller manager when there are no bootstrap
    # RBAC rules; hence the conditions.
    runtime, api = f"unix://{CONTAINERD_SOCKET}", f"{settings.api_server}/readyz"
    yield Component("etcd", (f"{programs}/etcd", *_etcd_flags(settings)))
    yield Component("containerd", ("/usr/bin/containerd", f"--config={settings.conf / 'containerd.toml'}"))
    yield Component("kube-apiserver", (f"{programs}/kube-apiserver", *_api_server_flags(settings)))
    yield Component("kubelet", (f"{programs}/kubelet", *_kubelet_flags(settings)), waits_for=runtime)
    yield Component("kube-proxy", (f"{programs}/kube-proxy", f"--config={settings.conf / 'kube-proxy.json'}"))
    for name, flags in (
        ("kube-controller-manager", _controller_manager_flags(settings)),
        ("kube-scheduler", _controller_flags(settings, "scheduler")),
    ):
        yield Component(name, (f"{programs}/{name}", *flags), waits_for=api)


def _etcd_flags(settings: Settings) -> list[str]:
    client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    return [
        f"--name={settings.name}",
        f"--data-dir={settings.state / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={settings.name}={peer}",
        "--auto-compaction-retention=1",
        "--unsafe-no-fsync",  # the data outlives a killed etcd, not a power failure
        "--log-level=warn",
    ]


def _api_server_flags(settings: Settings) -> list[str]:
    pki = settings.pki
    return [
        f"--advertise-address={settings.node_ip}",
        "--bind-address=0.0.0.0",
        f"--secure-port={settings.api_port}",
        "--etcd-servers=http://127.0.0.1:2379",
        f"--service-cluster-ip-range={settings.service_cidr}",
        "--authorization-mode=Node,RBAC",
        "--anonymous-auth=false",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / 'apiserver-kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'apiserver-kubelet-client.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        f"--proxy-client-cert-file={pki / FRONT_PROXY}.crt",
        f"--proxy-client-key-file={pki / FRONT_PROXY}.key",
        f"--requestheader-client-ca-file={pki / FRONT_PROXY_CA}.crt",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--cert-dir={settings.conf}",
        "--profiling=false",
    ]


def _controller_flags(settings: Settings, user: str) -> list[str]:
    kubeconfig = settings.pki / f"{user}.conf"
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        *API_CLIENT_RATE,
        f"--cert-dir={settings.conf}",
        "--profiling=false",
    ]


def _controller_manager_flags(settings: Settings) -> list[str]:
    pki = settings.pki
    return [
        *_controller_flags(settings, "controller-manager"),
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki / 'sa.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        f"--flex-volume-plugin-dir={settings.conf / 'volume-plugins'}",
        "--horizontal-pod-autoscaler-sync-period=5s",
    ]


def _kubelet_flags(settings: Settings) -> list[str]:
    return [
        f"--config={settings.conf / 'kubelet.json'}",
        f"--kubeconfig={settings.pki / 'kubelet.conf'}",
        f"--hostname-override={settings.name}",
        f"--node-ip={settings.node_ip}",
        f"--cert-dir={settings.conf}",
    ]


def configuration(settings: Settings, engine_spec: bool) -> dict[str, str]:
    """Configuration files by name, to lie in `settings.conf`.

    `engine_spec` says whether the runtime of the engine is to be had (see `engine_runtime_spec`).
    """
    return {
        "cni/10-node.conflist": json.dumps(_cni(settings), indent=1),
        "containerd.toml": _containerd(settings, engine_spec),
        "kubelet.json": json.dumps(_kubelet(settings), indent=1),
        "kube-proxy.json": json.dumps(_kube_proxy(settings), indent=1),
        "resolv.conf": "",  # no name outside the cluster can be looked up
    }


def _cni(settings: Settings) -> dict[str, object]:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": settings.pod_cidr}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "node", "plugins": [bridge, ports]}


def _containerd(settings: Settings, engine_spec: bool) -> str:
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    runtimes = f"""
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
SystemdCgroup = false
"""
    if engine_spec:
        runtimes += f"""
[{cri}.containerd.runtimes.{ENGINE_RUNTIME}]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{settings.conf / "engine-spec.json"}"
"""
    return f"""version = 2
oom_score = 0
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]
[grpc]
address = "{CONTAINERD_SOCKET}"
[{cri}]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
disable_apparmor = true
[{cri}.containerd]
default_runtime_name = "runc"
snapshotter = "overlayfs"
{runtimes}
[{cri}.cni]
bin_dir = "{CNI_PROGRAMS}"
conf_dir = "{settings.conf / "cni"}"
"""


def engine_runtime_spec(default_spec: str, environment: Path) -> str:
    """containerd's default container (`ctr oci spec`) with the engine's environment mounted read-only.

    So an image without its 5.5 GB of Python packages behaves like the complete one, and whoever writes the
    pod only names a RuntimeClass.
    """
    spec = json.loads(default_spec)
    del spec["process"]["rlimits"]  # ctr's own limit of 1024 open files
    options = ["rbind", "ro", "nosuid", "nodev"]
    mount = {
        "destination": ENGINE_ENVIRONMENT,
        "type": "bind",
        "source": str(environment),
        "options": options,
    }
    spec["mounts"].append(mount)
    return json.dumps(spec, indent=1)


def _kubelet(settings: Settings) -> dict[str, object]:
    pki = settings.pki
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "0.0.0.0",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(pki / "kubelet-server.key"),
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{settings.name}",
        "enforceNodeAllocatable": ["pods"],
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "maxOpenFiles": OPEN_FILES,
        "maxPods": 200,
        "clusterDNS": [settings.dns_ip],
        "clusterDomain": "cluster.local",
        "resolvConf": str(settings.conf / "resolv.conf"),
        "nodeStatusUpdateFrequency": "5s",
        "nodeLeaseDurationSeconds": 40,
        "serializeImagePulls": False,
        # A container that failed is started again soon, and as soon the tenth time.
        "featureGates": {"KubeletCrashLoopBackOffMax": True},
        "crashLoopBackOff": {"maxContainerRestartPeriod": "5s"},
        # There is no registry: an image that is collected is gone.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "imageMinimumGCAge": "8760h",
        # The default thresholds are shares of a disk that this node does not have for itself.
        "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1Gi", "imagefs.available": "1Gi"},
        "volumePluginDir": str(settings.conf / "volume-plugins"),
    }


def _kube_proxy(settings: Settings) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "bindAddress": "0.0.0.0",
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "clusterCIDR": settings.pod_cidr,
        "hostnameOverride": settings.name,
        "clientConnection": {"kubeconfig": str(settings.pki / "proxy.conf")},
        "oomScoreAdj": 0,
        # Connection tracking limits belong to the machine and cannot be written from a namespace.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }
