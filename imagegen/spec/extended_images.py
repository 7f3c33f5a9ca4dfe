"""Images that extend one another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from imagegen.core.errors import MatrixError
from imagegen.core.text import did_you_mean
from imagegen.spec.compose import Generation, compose, removable
from imagegen.spec.references import PlacedEntry
from imagegen.spec.schema import ImageEntry

_NAMED = 4  # changes that a derived description names


def ancestry(image: PlacedEntry, images: Mapping[str, PlacedEntry]) -> tuple[PlacedEntry, ...]:
    """Return the images that `found` extends, the farthest first, and `found` itself.

    The result is empty where one of them is missing, has an error of its own, or is in a cycle.
    """
    chain = [image]
    while chain[0].entry and (name := chain[0].entry.extends):
        if name not in images or any(ancestor.name == name for ancestor in chain):
            return ()
        chain.insert(0, images[name])
    return tuple(chain) if chain[0].entry else ()


def removal_errors(
    image: PlacedEntry, chain: Sequence[Generation], choices: Sequence[Mapping[str, str]]
) -> Iterator[MatrixError]:
    """Yield an error for each name in the image's `without` that no cell of the image that it extends has."""
    without = image.entry.without
    removable_names = {name for choice in choices if without for name in removable(compose(chain[:-1], choice))}
    for position, name in enumerate(without):
        if name not in removable_names:
            message = f'"{name}" removes nothing: {image.entry.extends} has no such component, variable or package'
            fix = did_you_mean(name, removable_names) or f"`imagegen show {image.entry.extends}` lists what it has"
            yield image.error(message, "without", position, fix=fix, key=False)


def cycle_error(image: PlacedEntry, images: Mapping[str, PlacedEntry]) -> MatrixError | None:
    """Return the error of an image that extends itself, directly or through others; None for all others."""
    names = [image.name]
    while (entry := images[names[-1]].entry) and entry.extends in images:
        names.append(entry.extends)
        if names[-1] == image.name:
            message = f'"{image.name}" extends itself: {" -> ".join(names)}'
            return image.error(message, "extends", fix="extend another image, or none", key=False)
        if names[-1] in names[:-1]:
            return None  # it leads into a cycle, whose images have the error
    return None


def inherit(chain: Sequence[PlacedEntry]) -> ImageEntry:
    """Return the last entry of `chain` with the texts, the axes and the GPUs that it does not give itself."""
    whole: ImageEntry = chain[0].entry
    for parent, child in itertools.pairwise(chain):
        entry: ImageEntry = child.entry
        fields = {
            "description": entry.description or _derived(entry, parent.name),
            "purpose": entry.purpose or whole.purpose,
            "gpus": entry.gpus or whole.gpus,
            "stack": entry.stack or whole.stack,
            "axes": {**whole.axes, **entry.axes},
            "exclude": [*whole.exclude, *entry.exclude],
        }
        whole = entry.model_copy(update=fields)
    return whole


def _derived(entry: ImageEntry, parent: str) -> str:
    """Return a description for an image without one: its changes to the image that it extends."""
    added = [f"{name} {use.version}".strip() for name, use in entry.components.items()]
    added += [*entry.packages, *entry.env]
    phrases = [f"with {_listed(added)}"] if added else []
    phrases += [f"without {_listed(entry.without)}"] if entry.without else []
    return " ".join([parent, *phrases]) + "."


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:_NAMED])
    if len(names) > _NAMED:
        shown.append(f"{len(names) - _NAMED} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
