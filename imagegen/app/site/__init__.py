"""The matrix and its images as static pages."""

from imagegen.app.site.pages import render, replace_report, require_own
from imagegen.app.site.view import CellReport, History, LockChange, SiteReport, Smoke, history_of, href

__all__ = [
    "CellReport",
    "History",
    "LockChange",
    "SiteReport",
    "Smoke",
    "history_of",
    "href",
    "render",
    "replace_report",
    "require_own",
]
