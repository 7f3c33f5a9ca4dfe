"""The matrix and its images as static pages."""

from imagegen.app.site.folder import replace, require_own
from imagegen.app.site.history import History, Step, history_of
from imagegen.app.site.model import Report, Sheet, Smoke
from imagegen.app.site.pages import render
from imagegen.app.site.view import href

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
