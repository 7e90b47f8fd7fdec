"""What a build depends on beside the resource itself: the operator's settings, and the fleet's size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class TunerDelivery(StrEnum):
    """How the tuner's files come into a stock vLLM image."""

    INIT_CONTAINER = "InitContainer"
    """An init container copies them to a volume; works on every cluster."""
    IMAGE_VOLUME = "ImageVolume"
    """The image is mounted as a volume, read-only; needs Kubernetes 1.33 or newer with image volumes."""


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """The operator's own settings that show in the objects it makes. A change of one rolls every fleet's
    pods, except `public_keys`, which the kubelet refreshes in running pods.
    """

    tuner_image: str
    """Image that holds the tuner's files, see `tuner`."""
    tuner_delivery: TunerDelivery = TunerDelivery.INIT_CONTAINER
    tuner_pull_policy: str = "IfNotPresent"
    public_keys: Mapping[str, str] = field(default_factory=dict)
    """Public keys in PEM by key id: whose signed changes the engines accept."""
    pre_stop_seconds: int = 15
    """How long an ending pod goes on as if nothing had happened, while routers learn that it is ending."""
    margin_seconds: int = 15
    """Time beyond the drain for the engine to take itself down, before the kernel does it."""


@dataclass(frozen=True, slots=True)
class DesiredFleet:
    """What was decided of a fleet."""

    replicas: int | None
    """Its size. None leaves the number to whoever owns it and the field unsent."""
    max_num_seqs: int | None = None
    """What engines are started with by the last restart for another cap; None for what the spec says."""
