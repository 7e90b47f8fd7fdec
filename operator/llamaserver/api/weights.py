"""Whether the weights are in the cache before the engine starts, and which name that takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from llamaserver.api.base import cel
from llamaserver.api.errors import Problem
from llamaserver.api.managed import flag_name
from llamaserver.api.names import DOWNLOAD_CONTAINER
from llamaserver.api.podtemplate import PodContent
from llamaserver.api.source import Scheme, parse_uri
from llamaserver.api.spec import LlamaServerSpec

ELSEWHERE_VARIABLES: Final = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "VLLM_USE_MODELSCOPE")
ELSEWHERE_FLAGS: Final = ("--download-dir", "--load-format")
"""By these a user says that vLLM reads from another hub, to another place or by other files than is known
here: then it downloads by itself.
"""

NAME_CURE: Final = (
    f"{DOWNLOAD_CONTAINER} is the name of the operator's init container that downloads the model to "
    "spec.model.cache: give yours another one"
)


def is_downloaded_first(spec: LlamaServerSpec) -> bool:
    """Whether the model is in the cache's claim before the engine starts. Without a claim that would only
    move the download from one container to another, and every new pod would do it again.
    """
    if spec.model.cache is None or parse_uri(spec.model.uri).scheme is not Scheme.HF:
        return False
    variables = {variable.name for variable in spec.engine.env or ()}
    flags = {flag_name(argument) for argument in spec.engine.extra_args or ()}
    return not (variables & {*ELSEWHERE_VARIABLES} or flags & {*ELSEWHERE_FLAGS})


def name_problems(spec: LlamaServerSpec) -> Iterator[Problem]:
    """Containers that have the name of the download, where there is one."""
    content = (spec.pod_template.spec if spec.pod_template else None) or PodContent()
    named = {
        "containers": {container.name for container in content.containers or ()},
        "initContainers": {container.name for container in content.init_containers or ()},
    }
    taken = [kind for kind, names in named.items() if DOWNLOAD_CONTAINER in names]
    if taken and is_downloaded_first(spec):
        yield from (Problem(f"spec.podTemplate.spec.{kind}", NAME_CURE) for kind in taken)


def _rule(kind: str) -> dict[str, str]:
    flags = "|".join(flag.removeprefix("--").replace("-", "[-_]") for flag in ELSEWHERE_FLAGS)
    return cel(
        f"!has(self.podTemplate) || !has(self.podTemplate.spec) || !has(self.podTemplate.spec.{kind}) || "
        f"!self.podTemplate.spec.{kind}.exists(c, c.name == {DOWNLOAD_CONTAINER!r}) || "
        "!has(self.model.cache) || !self.model.uri.startsWith('hf://') || "
        "(has(self.engine.env) && "
        f"self.engine.env.exists(e, e.name in {list(ELSEWHERE_VARIABLES)!r})) || "
        "(has(self.engine.extraArgs) && "
        f"self.engine.extraArgs.exists(a, a.matches('^--({flags})([=.]|$)')))",
        NAME_CURE,
        f".podTemplate.spec.{kind}",
    )


NAME_RULES: Final = (_rule("containers"), _rule("initContainers"))
