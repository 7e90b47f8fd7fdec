"""spec.engine.tls: HTTPS on the engine's own port."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydantic import Field

from llamaserver.api.base import Group, ObjectName, cel
from llamaserver.api.names import ENGINE_PORT_NAME, ENGINE_TLS_PORT_NAME

PORT_NAMES: Final = (ENGINE_PORT_NAME, ENGINE_TLS_PORT_NAME)
PORT_NAMES_CURE: Final = (
    "ports called http and https are the engine's where spec.engine.tls is set, for the Service finds old "
    "and new pods by them: give this one another name"
)


class TLSSpec(Group):
    """The certificate that an engine shows."""

    secret_name: ObjectName = Field(
        description="Name of a Secret of type kubernetes.io/tls in the namespace of the LlamaServer: the "
        "certificate with its chain in tls.crt and its key, without a passphrase, in tls.key. A certificate "
        "that is renewed there is taken up by running engines. The operator never reads it."
    )


def _rules() -> Iterator[dict[str, str]]:
    for kind in ("containers", "initContainers"):
        at = f"self.podTemplate.spec.{kind}"
        yield cel(
            "!has(self.engine.tls) || !has(self.podTemplate) || !has(self.podTemplate.spec) || "
            f"!has({at}) || !{at}.exists(c, has(c.ports) && c.ports.exists(p, has(p.name) && "
            f"(p.name == {ENGINE_PORT_NAME!r} || p.name == {ENGINE_TLS_PORT_NAME!r})))",
            PORT_NAMES_CURE,
            f".podTemplate.spec.{kind}",
        )


TLS_RULES: Final = tuple(_rules())
