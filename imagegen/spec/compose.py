"""The content of a cell: an image's entry with its stacks and variants, on top of the images that it extends."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from imagegen.core.errors import Location, MatrixError
from imagegen.core.text import did_you_mean
from imagegen.spec.model import CONFIG_NAMES, ConfigName
from imagegen.spec.recipe_file import EnvEntry, join_env
from imagegen.spec.references import PlacedEntry
from imagegen.spec.schema import (
    CommandEntry,
    ComponentUse,
    CopyEntry,
    ImageEntry,
    OverrideEntry,
    PackagePatchEntry,
    PartEntry,
    StackEntry,
    UserEntry,
    VariantEntry,
    WorkdirEntry,
)

_REMOVABLE = ("components", "env", "packages", "overrides")  # the fields from which `without` removes

_NAMED = 4  # changes that a derived description names


@dataclass(frozen=True)
class Generation:
    """One image of a chain in which each extends the one before it: its own entry, and the stacks that it names."""

    image: ImageEntry
    stacks: tuple[StackEntry, ...] = ()


@dataclass
class Composition:
    """Names only; spec/complete.py resolves them."""

    base: str = ""
    gpus: list[str] = field(default_factory=list)
    interpreter: str | None = None  # None: chosen by base and Python
    components: dict[str, ComponentUse] = field(default_factory=dict)
    env: dict[str, EnvEntry] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)  # Debian package -> reason
    omits: dict[str, str] = field(default_factory=dict)  # distribution -> why it is left out
    overrides: dict[str, OverrideEntry] = field(default_factory=dict)  # by distribution
    config: dict[ConfigName, CommandEntry | UserEntry | WorkdirEntry] = field(default_factory=dict)
    labels: dict[str, EnvEntry] = field(default_factory=dict)
    files: dict[str, CopyEntry] = field(default_factory=dict)  # by path in the image
    patches: dict[str, PackagePatchEntry] = field(default_factory=dict)  # by path from the project's directory
    ports: dict[str, str] = field(default_factory=dict)  # port -> the program that listens there
    ldconfig: dict[str, str] = field(default_factory=dict)  # directory of the image -> reason
    accepts: dict[str, str] = field(default_factory=dict)  # rule -> why it only warns


def compose(chain: Sequence[Generation], axes: Mapping[str, str]) -> Composition:
    """Return the content of the last image of `chain` in the cell with these `axes`.

    Each image comes after all of the one that it extends: its removals, its stacks in their order, its entry, then the
    variants that apply, in the same order. A later value replaces an earlier one.
    """
    composition = Composition()
    for generation in chain:
        for name in generation.image.without:
            _remove(composition, name)
        _replace(composition, generation.image)
        entries: tuple[StackEntry | ImageEntry, ...] = (*generation.stacks, generation.image)
        for part in entries:
            _add(composition, part)
        for variant in _applying(entries, axes):
            _replace(composition, variant)
            _add(composition, variant)
            for name in variant.without:
                composition.components.pop(name, None)
    return composition


def removable(composition: Composition) -> set[str]:
    """Return the names that `without` of an image can remove: components, variables, Debian packages, overrides."""
    return {name for section in _REMOVABLE for name in getattr(composition, section)}


def _remove(composition: Composition, name: str) -> None:
    for section in _REMOVABLE:
        getattr(composition, section).pop(name, None)


def _replace(composition: Composition, part: ImageEntry | VariantEntry) -> None:
    composition.base = part.base or composition.base
    composition.gpus = part.gpus or composition.gpus
    composition.interpreter = part.interpreter or composition.interpreter


def _add(composition: Composition, part: PartEntry) -> None:
    for name in PartEntry.model_fields.keys() - {"config", "env"}:
        getattr(composition, name).update(getattr(part, name))
    composition.env = join_env(composition.env, part.env)
    composition.config.update({name: value for name in CONFIG_NAMES if (value := getattr(part.config, name))})


def _applying(entries: Sequence[StackEntry | ImageEntry], axes: Mapping[str, str]) -> Iterator[VariantEntry]:
    for part in entries:
        for variant in part.variants:
            if applies(variant.when, axes):
                yield variant


def applies(choice: Mapping[str, Sequence[str]], axes: Mapping[str, str]) -> bool:
    """Return whether each axis that `choice` names has one of its values in a cell of these `axes`."""
    return all(axes[axis] in values for axis, values in choice.items())


@dataclass(frozen=True)
class Definition:
    """The entry that defines a name of a cell, and the place where it does."""

    placed: PlacedEntry
    inside: tuple[str | int, ...]  # the path to the name, below the entry

    @property
    def where(self) -> Location:
        return self.placed.where(*self.inside)


def definitions(
    chain: Iterable[Sequence[PlacedEntry]],
    axes: Mapping[str, str],
    section: Literal["components", "files", "ldconfig", "overrides", "patches"],
) -> dict[str, Definition]:
    """Return name -> the definition that counts in the cell with these `axes`, of one field of PartEntry.

    `chain` has the stacks of each image and the image itself, in the order of `compose`.
    """
    definition_of: dict[str, Definition] = {}
    for entries in chain:
        for part in entries:
            definition_of |= {name: Definition(part, (section, name)) for name in getattr(part.entry, section)}
        for part in entries:
            for position, variant in enumerate(part.entry.variants):
                if applies(variant.when, axes):
                    definition_of |= {
                        name: Definition(part, ("variants", position, section, name))
                        for name in getattr(variant, section)
                    }
    return definition_of


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
    added += [f"{name} {override.version}".strip() for name, override in entry.overrides.items() if not override.omit]
    added += [*entry.packages, *entry.env]
    phrases = [f"with {_listed(added)}"] if added else []
    phrases += [f"without {_listed(entry.without)}"] if entry.without else []
    return " ".join([parent, *phrases]) + "."


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:_NAMED])
    if len(names) > _NAMED:
        shown.append(f"{len(names) - _NAMED} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
