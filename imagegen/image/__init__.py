"""From a lock to an OCI image: bases, interpreters, layers, the Dockerfile, and the files of existing images."""
