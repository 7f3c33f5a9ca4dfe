"""Errors in tests: identified by their code, so that messages can be reworded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from imagegen.core.errors import ImagegenError


@contextmanager
def raises(code: str, *, where: str | None = None) -> Iterator[pytest.ExceptionInfo[ImagegenError]]:
    """Expect an error with this code, and with this location where one is given."""
    with pytest.raises(ImagegenError) as caught:
        yield caught
    assert caught.value.code == code, caught.value
    assert where is None or str(caught.value.where) == where
