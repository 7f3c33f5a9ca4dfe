"""The lock: everything that decides an image's bytes, resolved."""

from typing import TYPE_CHECKING

from imagegen.core.deferred import lazy_names

if TYPE_CHECKING:
    from imagegen.lock.build_sources import fetch_sources, require_unchanged
    from imagegen.lock.builds import with_built_wheels
    from imagegen.lock.facts import facts_of_lock
    from imagegen.lock.file import (
        contents_hash,
        dumps,
        dumps_attached,
        inputs_hash,
        loads,
        loads_attached,
        loads_combined,
        local_tags,
        read,
        read_text,
        write,
    )
    from imagegen.lock.freshness import contradictions, moved_values, outdated, stale
    from imagegen.lock.own import pack_own_packages, require_own_packages

__getattr__ = lazy_names(
    __name__,
    {
        "build_sources": ("fetch_sources", "require_unchanged"),
        "builds": ("with_built_wheels",),
        "facts": ("facts_of_lock",),
        "file": (
            "contents_hash",
            "dumps",
            "dumps_attached",
            "inputs_hash",
            "loads",
            "loads_attached",
            "loads_combined",
            "local_tags",
            "read",
            "read_text",
            "write",
        ),
        "freshness": ("contradictions", "moved_values", "outdated", "stale"),
        "own": ("pack_own_packages", "require_own_packages"),
    },
)
