"""OCI images: media types and documents (`types`), and image layouts (`layout`).

Sources: OCI image-spec v1.1; Docker's image manifest version 2, schema 2, which has other media types.
"""
