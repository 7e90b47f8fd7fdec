"""Which vLLM release an image holds, as far as its tag tells, and which flags came with which release."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

ACCESS_LOG_FILTER_SINCE: Final = (0, 16)
"""--disable-access-log-for-endpoints."""
HISTOGRAM_BUCKETS_SINCE: Final = (0, 32)
"""--custom-histogram-buckets: the release in which it was read; of older ones that is not known."""
KV_OFFLOADING_SINCE: Final = (0, 14)
"""--kv-offloading-size. 0.11.1 to 0.13 know the flag too, but their native backend does not start with it: it
is told of no blocks to use.
"""
KV_OFFLOADING_IN_SHM_SINCE: Final = (0, 32)
"""The release in which the offloaded cache was seen to lie in /dev/shm; of older ones that is not known."""
SSL_REFRESH_SINCE: Final = (0, 8)
"""--enable-ssl-refresh."""
SHUTDOWN_TIMEOUT_SINCE: Final = (0, 18)
"""--shutdown-timeout; older engines cut streams at SIGTERM."""

_TAG: Final = re.compile(r"v?(\d+)\.(\d+)(?![0-9])")


class Release(NamedTuple):
    """What is known of the engine in an image. `version` is None when the tag is no version."""

    version: tuple[int, int] | None

    def has(self, since: tuple[int, int]) -> bool:
        """Whether a flag that came with `since` can be given.

        A tag that is no version (`latest`, `dev`, a digest alone) is taken for a current release: an engine
        that is older than it looks says at its start which argument it does not know, while a flag that was
        left out, such as the drain, would be missed only by the people whose streams are cut.
        """
        return self.version is None or self.version >= since

    def surely_has(self, since: tuple[int, int]) -> bool:
        """The same for a flag without which less is known and nothing is lost: only where the tag says so."""
        return self.version is not None and self.version >= since


def release_of(image: str) -> Release:
    """Read the release from an image reference such as `vllm/vllm-openai:v0.32.0-cu129@sha256:...`."""
    last = image.partition("@")[0].rpartition("/")[2]
    tag = last.partition(":")[2]
    found = _TAG.match(tag)
    return Release((int(found[1]), int(found[2])) if found else None)
