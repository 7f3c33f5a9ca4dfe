"""The matrix and its images as static pages."""

from imagegen.app.site.history import History, Step, history_of
from imagegen.app.site.pages import render, replace, require_own
from imagegen.app.site.view import Report, Sheet, Smoke, href

__all__ = [
    "History",
    "Report",
    "Sheet",
    "Smoke",
    "Step",
    "history_of",
    "href",
    "render",
    "replace",
    "require_own",
]
