"""Public traces of requests -> Demand.

Three formats, told apart by their first line: the CSV of Azure's LLM inference traces
(`TIMESTAMP,ContextTokens,GeneratedTokens`), the JSON lines of Mooncake (`timestamp` in ms, `input_length`,
`output_length`, and `hash_ids` for the blocks of the prompt), and a CSV of rates over time (`t_s,req_per_s`),
as derived from ServeGen, which is a shape without lengths.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from llamaserver.simulate.demand import Demand, Request
from llamaserver.simulate.errors import SimulationError
from llamaserver.simulate.lengths import Lengths
from llamaserver.simulate.prefixes import BLOCK
from llamaserver.simulate.shapes import poisson

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE = ("timestamp", "input_length", "output_length")
BLOCKS = "hash_ids"
RATES = ("t_s", "req_per_s")
FORMATS = (
    f"a CSV with the columns {','.join(AZURE)} (Azure's LLM traces), JSON lines with {', '.join(MOONCAKE)} "
    f"(Mooncake), or a CSV with the columns {','.join(RATES)} (a rate over time)"
)
LONGEST_S = 366 * 86400.0


class _Place:
    """Where in a file something was read, for messages."""

    def __init__(self, path: Path, line: int, column: str = "") -> None:
        self.path, self.line, self.column = path, line, column

    def fail(self, problem: str, cure: str) -> NoReturn:
        column = f", column {self.column}" if self.column else ""
        raise SimulationError(f"{self.path}, line {self.line}{column}: {problem}; {cure}")


def read_requests(path: Path, prefixes: bool = False) -> list[Request]:
    """The requests of an Azure or Mooncake trace, in the order of their times; the first comes at 0. With
    `prefixes` also the blocks that their prompts share.

    Raises SimulationError, which names file, line and column.
    """
    lines = _lines(path)
    first = lines[0].lstrip()
    if first.startswith("{"):
        requests = [_mooncake(path, n, text, prefixes) for n, text in enumerate(lines, 1) if text.strip()]
    elif prefixes:
        raise no_prefixes(str(path))
    else:
        requests = list(_azure(path, lines))
    if not requests:
        _Place(path, 1).fail("there is no request below the head line", "give a trace with requests")
    requests.sort(key=lambda r: r.at)
    start = requests[0].at
    return [replace(r, at=r.at - start) for r in requests]


def no_prefixes(what: str) -> SimulationError:
    """What to say where prompts that share nothing are to meet a prefix cache, or a router by prefixes."""
    return SimulationError(
        f"{what} does not tell which prompts begin alike, so a prefix cache or a router by prefixes "
        "would be of no use: give a trace with hash_ids, as Mooncake's are, or leave --prefix-cache out, or "
        "--router prefix"
    )


def is_rates(path: Path) -> bool:
    """Whether the file holds rates over time and no requests."""
    return _header(_lines(path)[0])[: len(RATES)] == list(RATES)


def read_rates(path: Path) -> list[tuple[float, float]]:
    """(seconds from the start, requests per second) of a rate CSV, times rising."""
    lines = _lines(path)
    points: list[tuple[float, float]] = []
    for n, row in _rows(path, lines, RATES):
        at = _number(_Place(path, n, RATES[0]), row[RATES[0]])
        rate = _number(_Place(path, n, RATES[1]), row[RATES[1]])
        if points and at <= points[-1][0]:
            _Place(path, n, RATES[0]).fail(
                f"{at:g} does not come after {points[-1][0]:g}", "sort the file by time"
            )
        points.append((at, rate))
    if len(points) < 2:
        _Place(path, 1).fail("a shape needs two points at least", "give more rows")
    return [(at - points[0][0], rate) for at, rate in points]


def cut(requests: Sequence[Request], start_s: float, duration_s: float, speed: float = 1.0) -> list[Request]:
    """What comes in `duration_s` from `start_s` of a trace that is played `speed` times as fast.

    Times are those of the run: 0 is its start.
    """
    end = start_s + duration_s * speed
    return [replace(r, at=(r.at - start_s) / speed) for r in requests if start_s <= r.at < end]


def from_rates(
    points: Sequence[tuple[float, float]], duration_s: float, mean: float, lengths: Lengths, seed: int
) -> list[Request]:
    """Poisson arrivals that follow the shape, squeezed into `duration_s` and scaled to the mean given."""
    span = points[-1][0]
    area = sum((b - a) * (x + y) / 2 for (a, x), (b, y) in pairwise(points))
    if area <= 0.0:
        raise SimulationError("the rates of the shape are all zero; give one with requests")
    scale = mean * span / area
    peak = scale * max(rate for _, rate in points)

    def rate(t: float) -> float:
        return scale * _interpolated(points, t / duration_s * span)

    return list(poisson(rate, peak, duration_s, lengths, random.Random(seed)))


def _interpolated(points: Sequence[tuple[float, float]], at: float) -> float:
    low, high = 0, len(points) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if points[middle][0] <= at else (low, middle)
    (a, x), (b, y) = points[low], points[high]
    return x + (y - x) * min(1.0, max(0.0, (at - a) / (b - a)))


def demand_of(
    path: Path,
    *,
    start_s: float = 0.0,
    duration_s: float,
    speed: float = 1.0,
    rate: float | None,
    lengths: Lengths,
    seed: int,
    prefixes: bool = False,
) -> Demand:
    """The demand that a file gives: its requests as they are, or arrivals that follow its shape.

    `rate` is the mean of a shape in requests per second; a trace of requests has its own, which `speed`
    changes, and ends with its last request where that comes before `duration_s`. With `prefixes` it has to
    tell what its prompts share.
    """
    if is_rates(path):
        if prefixes:
            raise no_prefixes(str(path))
        if rate is None:
            raise SimulationError(
                f"{path} is a shape of rates without a size of its own; give the mean with --rate"
            )
        made = from_rates(read_rates(path), duration_s, rate, lengths, seed)
        return Demand(f"{path.name}, {rate:g} requests/s", duration_s, made, source=path.name)
    if rate is not None:
        raise SimulationError(
            f"{path} is a trace with a rate of its own; --speed 2 plays it twice as fast, --rate sizes shapes"
        )
    requests = read_requests(path, prefixes)
    made = cut(requests, start_s, duration_s, speed)
    if not made:
        raise SimulationError(f"{path} has no request in the seconds asked for; choose another --start")
    faster = f", {speed:g} times as fast" if speed != 1.0 else ""
    lasts = (requests[-1].at - start_s) / speed
    return Demand(f"{path.name}{faster}", max(1.0, min(duration_s, lasts)), made, source=path.name)


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise SimulationError(
            f"{path} cannot be read ({error.strerror}); give the path of a trace: {FORMATS}"
        ) from error
    except UnicodeDecodeError as error:
        raise SimulationError(f"{path} is no text; give {FORMATS}") from error
    if not lines or not lines[0].strip():
        _Place(path, 1).fail("there is nothing", f"give {FORMATS}")
    return lines


def _header(line: str) -> list[str]:
    return [name.strip() for name in next(csv.reader([line]))]


def _rows(path: Path, lines: list[str], columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    names = _header(lines[0])
    for column in columns:
        if column not in names:
            _Place(path, 1).fail(
                f"there is no column {column!r} among {', '.join(names)[:80]}", f"give {FORMATS}"
            )
    reader = csv.reader(lines[1:])
    for row in reader:
        n = reader.line_num + 1
        if not row:
            continue
        if len(row) != len(names):
            _Place(path, n).fail(
                f"{len(row)} values where the head line names {len(names)} columns",
                "repair or remove the line",
            )
        yield n, dict(zip(names, row, strict=True))


def _azure(path: Path, lines: list[str]) -> Iterable[Request]:
    for n, row in _rows(path, lines, AZURE):
        try:
            # Seven digits of a second are one more than Python reads.
            at = datetime.fromisoformat(row[AZURE[0]].strip()[:26]).replace(tzinfo=UTC).timestamp()
        except ValueError:
            _Place(path, n, AZURE[0]).fail(
                f"{row[AZURE[0]][:40]!r} is no time", "write it as 2023-11-16 18:17:03.979"
            )
        yield Request(
            at,
            _tokens(_Place(path, n, AZURE[1]), row[AZURE[1]], 1),
            _tokens(_Place(path, n, AZURE[2]), row[AZURE[2]], 0),
        )


def _mooncake(path: Path, n: int, text: str, prefixes: bool) -> Request:
    try:
        row = json.loads(text)
    except ValueError as error:
        raise SimulationError(
            f"{path}, line {n}: this is no JSON ({error}); repair or remove the line"
        ) from error
    if not isinstance(row, dict):
        _Place(path, n).fail("this is no JSON object", "repair or remove the line")
    for key in MOONCAKE:
        if key not in row:
            _Place(path, n).fail(f"there is no {key!r}", f"give {FORMATS}")
    at = _number(_Place(path, n, MOONCAKE[0]), row[MOONCAKE[0]]) / 1000
    prompt = _tokens(_Place(path, n, MOONCAKE[1]), row[MOONCAKE[1]], 1)
    output = _tokens(_Place(path, n, MOONCAKE[2]), row[MOONCAKE[2]], 0)
    return Request(at, prompt, output, _blocks(_Place(path, n, BLOCKS), row, prompt) if prefixes else ())


def _blocks(place: _Place, row: dict[str, object], prompt: int) -> tuple[int, ...]:
    """The ids of the full blocks of a prompt. The last one of a trace is of what is left, if anything is."""
    if BLOCKS not in row:
        raise no_prefixes(f"{place.path}, line {place.line}, without {BLOCKS}")
    ids, full = row[BLOCKS], prompt // BLOCK
    if not isinstance(ids, list) or not all(type(block) is int for block in ids):
        place.fail("this is no list of whole numbers", "repair or remove the line")
    if len(ids) not in (full, -(-prompt // BLOCK)):
        place.fail(
            f"{len(ids)} blocks for {prompt} tokens",
            f"give one for every {BLOCK} tokens, and maybe one for the rest",
        )
    if len(set(ids)) < len(ids):
        place.fail(
            "a block comes twice", "let an id stand for a block and all before it, so that none comes twice"
        )
    return tuple(ids[:full])


def _number(place: _Place, value: object) -> float:
    try:
        number = float(str(value)) if not isinstance(value, bool) else float("nan")
    except ValueError:
        number = float("nan")
    if not 0.0 <= number <= 1000 * LONGEST_S:
        place.fail(f"{str(value)[:40]!r} is no number from zero up", "repair or remove the line")
    return number


def _tokens(place: _Place, value: object, least: int) -> int:
    number = _number(place, value)
    if number != int(number) or not least <= number < 1 << 31:
        place.fail(f"{str(value)[:40]!r} is no number of tokens", f"write a whole number from {least} up")
    return int(number)
