"""What is wrong with a resource, in the terms of whoever wrote it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend: the field as the user wrote it (`spec.slo.queueTime.target`) and what to write
    instead.
    """

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class InvalidSpec(ValueError):  # noqa: N818 - named for what it says
    """The resource cannot be acted upon. `field` and `message` are the first problem; `problems` has them
    all.
    """

    def __init__(self, field: str, message: str, *more: Problem) -> None:
        self.field = field
        self.message = message
        self.problems = (Problem(field, message), *more)
        super().__init__("; ".join(str(problem) for problem in self.problems))


class SchemaError(TypeError):
    """A model uses something that a Kubernetes structural schema cannot say, or that the converter does
    not know.
    """
