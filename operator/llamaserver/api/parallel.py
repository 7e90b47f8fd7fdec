"""How many processes share the accelerators of one pod, as far as extraArgs say so."""

from __future__ import annotations

from typing import Final

from llamaserver.api.managed import flag_name

_PIPELINE: Final = ("--pipeline-parallel-size", "-pp")
_DATA: Final = ("--data-parallel-size", "-dp")
_DATA_LOCAL: Final = ("--data-parallel-size-local", "-dpl")


def other_parallel(arguments: tuple[str, ...]) -> int | None:
    """Accelerators of one pod per tensor-parallel rank that extraArgs ask for; None when that is not
    readable.
    """
    found = _sizes(arguments)
    return None if found is None else found.get(_PIPELINE, 1) * _local(found)


def engines_of(arguments: tuple[str, ...]) -> int:
    """Engines of one pod, which are its data-parallel ranks; 1 where extraArgs do not say it readably."""
    return _local(_sizes(arguments) or {})


def _sizes(arguments: tuple[str, ...]) -> dict[tuple[str, ...], int] | None:
    """What each flag is given, by its names; None where one is given no number."""
    found: dict[tuple[str, ...], int] = {}
    for index, argument in enumerate(arguments):
        for names in (_PIPELINE, _DATA, _DATA_LOCAL):
            if flag_name(argument) in names:
                following = arguments[index + 1] if index + 1 < len(arguments) else ""
                value = argument.partition("=")[2] if "=" in argument else following
                if not value.isdecimal():
                    return None
                found[names] = int(value)
    return found


def _local(found: dict[tuple[str, ...], int]) -> int:
    return found.get(_DATA_LOCAL, found.get(_DATA, 1))
