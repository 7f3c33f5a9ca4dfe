"""Matrices and recipes, the files under matrices/ and wheels/: loading, cells and their selection."""

from typing import TYPE_CHECKING

from imagegen.core.deferred import lazy_names

if TYPE_CHECKING:
    from imagegen.spec.cells import Matrix
    from imagegen.spec.loader import load
    from imagegen.spec.model import Cell, Rule

__all__ = ["Cell", "Matrix", "Rule", "load"]

__getattr__ = lazy_names(
    __name__,
    {
        "cells": ("Matrix",),
        "loader": ("load",),
        "model": ("Cell", "Rule"),
    },
)
