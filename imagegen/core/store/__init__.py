"""The content-addressed store, an OCI image layout."""

from imagegen.core.store.layout import Store
