"""Matrices and recipes, the files under matrices/ and wheels/: loading, cells and their selection."""

from imagegen.plan.matrix.cells import Matrix
from imagegen.plan.matrix.load import load
from imagegen.plan.matrix.model import Cell, Rule

__all__ = ["Cell", "Matrix", "Rule", "load"]
