"""OCI images: documents, layouts, and the client of registries."""
