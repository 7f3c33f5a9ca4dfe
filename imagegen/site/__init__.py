"""The matrix and its images as static pages."""

from imagegen.site.folder import replace, require_own
from imagegen.site.history import History, Step, history_of
from imagegen.site.model import Report, Sheet, Smoke
from imagegen.site.pages import render
from imagegen.site.view import href

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
