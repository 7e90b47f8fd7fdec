"""How the tuner's files come into a stock vLLM image, without a derived image and without a fork.

The tuner's image holds the files at `TUNER_DIR`, the same place at which the engine's container sees them,
and has a `cp` for clusters that do not mount images as volumes.
"""

from __future__ import annotations

from typing import Any, Final

from llamaserver.desired.environment import TUNER_DIR
from llamaserver.desired.security import helper_security
from llamaserver.desired.settings import BuildSettings, TunerDelivery
from llamaserver.desired.volumes import TUNER_VOLUME, tuner_mount

TARGET: Final = "/target"
"""Where the init container has the volume; in its own `TUNER_DIR` are the files to copy."""

_SHARE: Final = {"cpu": "100m", "memory": "64Mi"}
"""What the copy of a few small files takes."""


def tuner_volume(settings: BuildSettings) -> dict[str, Any]:
    """The volume that holds the tuner's files."""
    if settings.tuner_delivery is TunerDelivery.IMAGE_VOLUME:
        image = {"reference": settings.tuner_image, "pullPolicy": settings.tuner_pull_policy}
        return {"name": TUNER_VOLUME, "image": image}
    return {"name": TUNER_VOLUME, "emptyDir": {"sizeLimit": "16Mi"}}


def engine_tuner_mount(settings: BuildSettings) -> dict[str, Any]:
    """The mount of that volume in the engine's container."""
    if settings.tuner_delivery is TunerDelivery.IMAGE_VOLUME:
        return {**tuner_mount(), "subPath": TUNER_DIR.removeprefix("/")}
    return tuner_mount()


def tuner_init_containers(settings: BuildSettings) -> list[dict[str, Any]]:
    """The init container that fills the volume; none where the image itself is the volume."""
    if settings.tuner_delivery is TunerDelivery.IMAGE_VOLUME:
        return []
    return [
        {
            "name": "tuner",
            "image": settings.tuner_image,
            "imagePullPolicy": settings.tuner_pull_policy,
            # -R and not -a: nobody but root may set the times of the volume's own folder.
            "command": ["cp", "-R", f"{TUNER_DIR}/.", f"{TARGET}/"],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            # Of both, for a namespace's quota may ask each container for both; and no more than is asked for,
            # which meets any LimitRange's ratio and leaves the pod's quality of service to the engine. It
            # runs before the engine and in its share, so it takes no room beyond an engine's.
            "resources": {"requests": {**_SHARE}, "limits": {**_SHARE}},
            "securityContext": helper_security(),
            "volumeMounts": [{"name": TUNER_VOLUME, "mountPath": TARGET}],
        }
    ]
