"""The machine that a measurement is about."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path


def processor() -> str:
    """The processor's name, or its architecture where the kernel does not tell."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def fast_dtype() -> str:
    """The type that vLLM's CPU backend is quick in here.

    Without AVX-512 it has no kernels for products of bfloat16 matrices and falls back to ones that take ten
    times as long as those for float32.
    """
    file = Path("/proc/cpuinfo")
    known = file.read_text() if file.exists() else ""
    return "bfloat16" if "avx512" in known or "avx" not in known else "float32"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def busy_s() -> float | None:
    """Seconds of processor time that anybody used since the machine's start; None where it does not tell."""
    file = Path("/proc/stat")
    if not file.exists():
        return None
    user, nice, system, _idle, _wait, irq, soft, *_ = map(int, file.read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def used_s(sessions: Collection[int]) -> float:
    """Seconds of processor time of this process and of all that live in these sessions."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name, in parentheses, may hold anything; the fields after it are counted from the state.
            fields = file.read_text().rpartition(")")[2].split()
            if int(fields[3]) in sessions or int(file.parent.name) == os.getpid():
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_gib() -> float:
    """All memory of the machine."""
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
