"""Choose a cell's interpreter: named by its image, the Python of its base, or a standalone build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from imagegen.core.errors import ErrorList, MatrixError
from imagegen.spec.foundation import Interpreter

if TYPE_CHECKING:
    from imagegen.spec.references import PlacedEntry


class Interpreters:
    """The interpreters of a matrix; errors of a choice are appended to `errors`, once for each image.

    `entries` are valid. If other entries have errors (not `whole`), a missing interpreter is not reported.
    """

    def __init__(self, entries: Sequence[PlacedEntry], errors: ErrorList[MatrixError], *, whole: bool) -> None:
        self._errors, self._whole = errors, whole
        self._failed: set[tuple[str, str]] = set()  # image, message
        self.by_name = {placed.name: placed.entry for placed in entries}
        self._by_system: dict[tuple[str, str], Interpreter] = {}  # system, minor version
        for placed in entries:
            interpreter = self.by_name[placed.name]
            for system in interpreter.systems:
                other = self._by_system.setdefault((system, interpreter.python), interpreter)
                if other is not interpreter:
                    message = f'"{other.name}" is already the Python {interpreter.python} of {system}'
                    errors.append(placed.error(message, "systems", fix="keep one of them"))

    def choose(self, image: PlacedEntry, name: str | None, system: str, axes: Mapping[str, str]) -> Interpreter | None:
        """Return the interpreter of a cell of `image` on a base of `system`; None after an error.

        `name` is the one that the image or a variant requests. Otherwise it is the system's own for the value of the
        axis `python`, or the standalone build that is named after that value.
        """
        python = axes["python"]
        chosen = self.by_name.get(name or f"standalone-{python}")
        if name is None:
            chosen = self._by_system.get((system, python), chosen)
        if chosen is None and name is None and self._whole:
            fix = f"define the interpreter standalone-{python}, or leave the value {python} out"
            self._fail(image, f"no interpreter is Python {python} on {system}", fix)
        elif chosen and (wrong := _mismatch(chosen, system, axes)):
            self._fail(image, *wrong)
            return None
        return chosen

    def _fail(self, image: PlacedEntry, message: str, fix: str) -> None:
        if (image.name, message) not in self._failed:
            self._failed.add((image.name, message))
            self._errors.append(image.error(message, "interpreter", fix=fix))


def _mismatch(chosen: Interpreter, system: str, axes: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the error of a choice and its fix; None if the choice fits."""
    python, platform, name = axes["python"], axes["platform"], f'the interpreter "{chosen.name}"'
    if chosen.python != python:
        fix = "name it in a variant `when: {python: [...]}`, or leave the other values of that axis out"
        return f"{name} is Python {chosen.python}, not {python}", fix
    if chosen.systems and system not in chosen.systems:
        fix = "leave `interpreter` out, or name a standalone one"
        return f"{name} is of {', '.join(chosen.systems)}; the base is {system}", fix
    if not chosen.systems and platform not in chosen.files:
        return f"{name} has no archive for {platform}", "add it to the entry's `files`"
    return None
