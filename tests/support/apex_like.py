"""tests/samples/apex_like, a stand-in for apex where GitHub cannot be reached: what it is asked with, and its files."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "samples" / "apex_like"
MODULES = ("apex_like_C", "apex_like_cuda")
ENV = {"APEX_CPP_EXT": "1", "APEX_CUDA_EXT": "1"}


def files() -> dict[str, bytes]:
    """Path -> contents, for a repository or an archive."""
    found = (path for path in FOLDER.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(FOLDER)): path.read_bytes() for path in found}
