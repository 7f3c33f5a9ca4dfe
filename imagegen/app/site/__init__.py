"""The matrix and its images as static pages."""

from imagegen.app.site.history import History, LockChange, history_of
from imagegen.app.site.pages import render, replace, require_own
from imagegen.app.site.view import Sheet, SiteReport, Smoke, href

__all__ = [
    "History",
    "LockChange",
    "Sheet",
    "SiteReport",
    "Smoke",
    "history_of",
    "href",
    "render",
    "replace",
    "require_own",
]
