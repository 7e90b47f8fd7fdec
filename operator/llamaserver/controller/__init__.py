"""The shell: watches, queue, cache, reconcile, tick, status. Thin where it acts, pure where it judges."""

from llamaserver.controller.operator import Operator
from llamaserver.controller.options import Options

__all__ = ["Operator", "Options"]
