"""The parts of one invocation in a project. A use case takes the parts that it uses."""

from __future__ import annotations

from pathlib import Path

from imagegen.app.judge import Judge
from imagegen.app.lock_files import LockFiles
from imagegen.app.matrices import Matrices
from imagegen.app.project import ProjectContext
from imagegen.spec.cells import Matrix


class Session:
    """The project with its matrix, its judge and its locks."""

    def __init__(self, project: ProjectContext) -> None:
        self.project = project
        self.matrices = Matrices(project)
        self.judge = Judge(project, self.matrices)
        self.lock_files = LockFiles(project, self.matrices, self.judge)

    @property
    def matrix(self) -> Matrix:
        return self.matrices.matrix

    def with_matrices(self, directory: Path) -> Session:
        """Return a session of this project with the matrix files of one more directory; it keeps no results."""
        return Session(self.project.with_matrices(directory))
