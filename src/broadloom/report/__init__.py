"""Report: one HTML page about plans, which works offline."""

from __future__ import annotations

from collections.abc import Mapping

from broadloom.plans import AssignmentResult, Plan
from broadloom.report.html_page import html_of, write_page
from broadloom.report.report_record import TITLE, record_of, record_of_folders

__all__ = ["TITLE", "html_of", "record_of", "record_of_folders", "report", "write_page"]


def report(plans: Mapping[str, Plan | AssignmentResult], title: str = TITLE, unit: str = "") -> str:
    """The report on plans in memory, as an HTML page; `broadloom report` writes one from folders.

    Args:
        plans: the plans, by the names that the page shows for them; several are compared.
        title: the heading of the page.
        unit: the unit of the weights, as "ms"; empty if it is not known.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([["news"], ["news"]]), algorithm="gm")
        >>> report({"today": plan}, title="Two brokers").count("Two brokers") > 0
        True
    """
    return html_of(record_of(plans, title, unit))
