"""Fetch the files that a lock names, and unpack what lies under the stack."""

from imagegen.image.inputs.fetch import complete, contents, fetch, fetch_each, fetch_parts
from imagegen.image.inputs.foundation import libpython_link, tree, tree_key

__all__ = ["complete", "contents", "fetch", "fetch_each", "fetch_parts", "libpython_link", "tree", "tree_key"]
