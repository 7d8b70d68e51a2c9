"""The report: one HTML page that works offline."""

from __future__ import annotations

from collections.abc import Mapping

from broadloom.plans import AssignmentResult, Plan
from broadloom.report.page import html_of
from broadloom.report.record import TITLE, record_of

__all__ = ["report"]


def report(plans: Mapping[str, Plan | AssignmentResult], title: str = TITLE) -> str:
    """The report on plans that are at hand, as a page; `broadloom report` writes one of folders.

    Args:
        plans: the plans, under the names that the page is to call them; several are compared.
        title: the heading of the page.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([["news"], ["news"]]), algorithm="gm")
        >>> report({"today": plan}, title="Two brokers").count("Two brokers") > 0
        True
    """
    return html_of(record_of(plans, title))
