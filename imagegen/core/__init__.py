"""Errors, settings, progress, network, git, sandbox, store and registry client: what every other package builds on."""
