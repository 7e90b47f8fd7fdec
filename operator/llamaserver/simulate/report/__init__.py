"""Results of a comparison for people and programs: a table, JSON, and a page with plots. Pure."""

from llamaserver.simulate.report.data import document
from llamaserver.simulate.report.page import page
from llamaserver.simulate.report.table import table

__all__ = ["document", "page", "table"]
