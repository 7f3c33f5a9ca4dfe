"""The worker that compiles one wheel in a build container. It uses the standard library alone."""
