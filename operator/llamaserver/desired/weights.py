"""Where the engine finds its weights."""

from __future__ import annotations

from typing import Final

from llamaserver.api.source import Scheme, Source, parse_uri
from llamaserver.api.spec import LlamaServerSpec
from llamaserver.api.weights import is_downloaded_first

MODEL_MOUNT: Final = "/mnt/model"
"""Where the claim of a pvc:// model, or the image of an oci:// model, is mounted, read-only; for a model that
is downloaded before the engine starts, where a link leads to it.
"""


def model_argument(spec: LlamaServerSpec) -> str:
    """What vLLM loads: a directory inside the container, or a repository that it downloads by itself.

    Of a model that was downloaded first the directory is a link to one commit: a restart of the container
    serves the same weights, whatever other pods have fetched to the claim since, and asks no hub.
    """
    source = parse_uri(spec.model.uri)
    return f"{MODEL_MOUNT}/{source.path}" if is_downloaded_first(spec) else below(MODEL_MOUNT, source)


def below(mount: str, source: Source) -> str:
    """The path of a source whose claim or image is at `mount`; other sources name their place themselves."""
    if source.scheme in (Scheme.PVC, Scheme.OCI):
        return f"{mount}/{source.path}".rstrip("/")
    return source.path
