"""The command line: one file per command; each parses, calls one function, prints."""

from imagegen.cli.main import main

__all__ = ["main"]
