"""Lock -> Dockerfile, and the folder that a plain build needs."""

from imagegen.recipe.dockerfile import Rendered, reason, render
from imagegen.recipe.folder import write

__all__ = ["Rendered", "reason", "render", "write"]
