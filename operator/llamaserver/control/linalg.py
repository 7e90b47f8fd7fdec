"""Small symmetric systems, in plain Python: five unknowns need no library."""

from __future__ import annotations

import math
from collections.abc import Sequence

Vector = tuple[float, ...]
Matrix = tuple[Vector, ...]


def dot(x: Sequence[float], y: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def times(m: Matrix, x: Sequence[float]) -> Vector:
    return tuple(dot(row, x) for row in m)


def quadratic(m: Matrix, x: Sequence[float]) -> float:
    """x' m x."""
    return dot(x, times(m, x))


def diagonal(values: Sequence[float]) -> Matrix:
    return tuple(tuple(v if i == j else 0.0 for j in range(len(values))) for i, v in enumerate(values))


def combine(a: Matrix, ka: float, b: Matrix, kb: float) -> Matrix:
    """ka a + kb b."""
    return tuple(
        tuple(ka * x + kb * y for x, y in zip(ra, rb, strict=True)) for ra, rb in zip(a, b, strict=True)
    )


def inverse(m: Matrix) -> Matrix | None:
    """The inverse of a symmetric positive definite matrix by Cholesky's method; None when it is not one."""
    n = len(m)
    low = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(i + 1):
            rest = m[i][j] - sum(low[i][k] * low[j][k] for k in range(j))
            if i == j:
                if not rest > 0.0 or not math.isfinite(rest):
                    return None
                low[i][i] = math.sqrt(rest)
            else:
                low[i][j] = rest / low[j][j]
    columns = [_solve_cholesky(low, [1.0 if i == j else 0.0 for i in range(n)]) for j in range(n)]
    return tuple(tuple((columns[j][i] + columns[i][j]) / 2.0 for j in range(n)) for i in range(n))


def _solve_cholesky(low: list[list[float]], rhs: list[float]) -> list[float]:
    n = len(rhs)
    y = [0.0] * n
    for i in range(n):
        y[i] = (rhs[i] - sum(low[i][k] * y[k] for k in range(i))) / low[i][i]
    x = [0.0] * n
    for i in reversed(range(n)):
        x[i] = (y[i] - sum(low[k][i] * x[k] for k in range(i + 1, n))) / low[i][i]
    return x
