"""What must agree between the fields of `features` and the rest of a spec."""

from __future__ import annotations

import re
from collections.abc import Iterator

from llamaserver.api.errors import Problem
from llamaserver.api.features import (
    CPU_LORAS_CURE,
    LOOKUP_CURE,
    SAME_NAME_CURE,
    SERVED_NAME,
    SERVED_NAME_CURE,
    TWINS,
    WORD,
    WORD_CURE,
    given_twice,
)
from llamaserver.api.source import own_name, parse_uri
from llamaserver.api.spec import LlamaServerSpec


def feature_problems(spec: LlamaServerSpec) -> Iterator[Problem]:
    """Everything about adapters, parsers and speculation that does not go together, with the cure."""
    yield from _words(spec)
    yield from _twins(spec)
    yield from _adapters(spec)
    speculation = spec.engine.speculative_config
    least, most = (
        (speculation.prompt_lookup_min, speculation.prompt_lookup_max) if speculation else (None, None)
    )
    if least is not None and most is not None and least > most:
        yield Problem("spec.engine.speculativeConfig.promptLookupMin", f"{LOOKUP_CURE} ({least} > {most})")


def _words(spec: LlamaServerSpec) -> Iterator[Problem]:
    engine = spec.engine
    for field, word in (
        ("quantization", engine.quantization),
        ("toolCallParser", engine.tool_call_parser),
        ("reasoningParser", engine.reasoning_parser),
        (
            "speculativeConfig.method",
            engine.speculative_config.method if engine.speculative_config else None,
        ),
    ):
        if word is not None and not re.fullmatch(WORD, word):
            yield Problem(f"spec.engine.{field}", f"{WORD_CURE} (got {word!r})")


def _twins(spec: LlamaServerSpec) -> Iterator[Problem]:
    given = spec.to_dict()
    for twin in TWINS:
        group, field = twin.path
        if field in given.get(group, {}):
            for index in given_twice(twin, spec.engine.extra_args or ()):
                yield Problem(f"spec.engine.extraArgs[{index}]", twin.cure)


def _adapters(spec: LlamaServerSpec) -> Iterator[Problem]:
    lora = spec.model.lora
    if lora is None:
        return
    if lora.max_cpu_loras is not None and lora.max_cpu_loras < lora.at_once:
        yield Problem("spec.model.lora.maxCpuLoras", f"{CPU_LORAS_CURE} ({lora.max_cpu_loras})")
    taken = set(spec.model.served_names or _own_names(spec))
    for index, adapter in enumerate(lora.adapters):
        field = f"spec.model.lora.adapters[{index}]"
        if not re.fullmatch(SERVED_NAME, adapter.name):
            yield Problem(f"{field}.name", f"{SERVED_NAME_CURE} (got {adapter.name!r})")
        if adapter.name in taken:
            yield Problem(f"{field}.name", f"{adapter.name} {SAME_NAME_CURE}")
        taken.add(adapter.name)
        try:
            parse_uri(adapter.uri)
        except ValueError as error:
            yield Problem(f"{field}.uri", str(error))


def _own_names(spec: LlamaServerSpec) -> tuple[str, ...]:
    try:
        return (own_name(parse_uri(spec.model.uri)),)
    except ValueError:
        return ()
