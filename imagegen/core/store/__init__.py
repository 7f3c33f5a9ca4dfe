"""The content-addressed store, an OCI image layout."""

from imagegen.core.store.layout import Store, digest_of

__all__ = ["Store", "digest_of"]
