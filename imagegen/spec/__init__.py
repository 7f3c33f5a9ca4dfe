"""Matrices and recipes, the files under matrices/ and wheels/: loading, cells and their selection."""

from typing import TYPE_CHECKING

from imagegen.core.deferred import lazy_names

if TYPE_CHECKING:
    from imagegen.spec.cell_facts import cell_answers, facts_of_cell, nearest_cell
    from imagegen.spec.cells import Matrix
    from imagegen.spec.document import key_location
    from imagegen.spec.loader import load
    from imagegen.spec.model import Cell

__getattr__ = lazy_names(
    __name__,
    {
        "cell_facts": ("cell_answers", "facts_of_cell", "nearest_cell"),
        "cells": ("Matrix",),
        "document": ("key_location",),
        "loader": ("load",),
        "model": ("Cell",),
    },
)
