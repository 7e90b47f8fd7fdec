"""What is wrong with what a user gave, and the cure."""

from __future__ import annotations


class SimulationError(ValueError):
    """A message for people: it names the place and what to do about it."""
