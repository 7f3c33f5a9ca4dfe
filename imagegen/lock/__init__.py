"""The lock: everything that decides an image's bytes, resolved, fetched by hash."""

from imagegen.lock.build_sources import fetch_sources, require_unchanged
from imagegen.lock.builds import realised
from imagegen.lock.candidates import uncatalogued
from imagegen.lock.choosing import Chooser, Places
from imagegen.lock.contents import contents
from imagegen.lock.fetch import complete, fetch, fetch_each, fetch_parts
from imagegen.lock.file import contents_hash, dumps, inputs_hash, read, write
from imagegen.lock.foundation import libpython_link, tree, tree_key
from imagegen.lock.freshness import contradictions, require_fresh, stale
from imagegen.lock.indexes import with_indexes
from imagegen.lock.make import gpus_of, make, moment

__all__ = [
    "Chooser",
    "Places",
    "complete",
    "contents",
    "contents_hash",
    "contradictions",
    "dumps",
    "fetch",
    "fetch_each",
    "fetch_parts",
    "fetch_sources",
    "gpus_of",
    "inputs_hash",
    "libpython_link",
    "make",
    "moment",
    "read",
    "realised",
    "require_fresh",
    "require_unchanged",
    "stale",
    "tree",
    "tree_key",
    "uncatalogued",
    "with_indexes",
    "write",
]
