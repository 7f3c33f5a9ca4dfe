"""What users write under matrices/ and wheels/: loading, cells and their selection."""

from imagegen.matrix.cells import Matrix
from imagegen.matrix.load import load
from imagegen.matrix.model import Cell
from imagegen.matrix.rule import Rule

__all__ = ["Cell", "Matrix", "Rule", "load"]
