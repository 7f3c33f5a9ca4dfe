"""Errors, settings, progress, network, git, sandbox, store and registry client, on which all other packages build."""
