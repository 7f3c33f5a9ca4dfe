"""The content of a cell: an image's entry with its stacks and variants, on top of the images that it extends."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from imagegen.core.errors import Location, MatrixError
from imagegen.core.text import did_you_mean
from imagegen.plan.matrix.model import CONFIG_NAMES, ConfigName
from imagegen.plan.matrix.recipe_file import EnvEntry, join_env
from imagegen.plan.matrix.references import PlacedEntry
from imagegen.plan.matrix.schema import (
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

_NAMED = 4  # changes that a derived description names
_REMOVABLE = ("components", "env", "packages", "overrides")  # the fields from which `without` removes


@dataclass(frozen=True)
class Generation:
    """One image of a chain in which each extends the one before it: its own entry, and the stacks that it names."""

    image: ImageEntry
    stacks: tuple[StackEntry, ...] = ()


@dataclass
class Composition:
    """Names only; plan/matrix/complete.py resolves them."""

    base: str = ""
    gpus: list[str] = field(default_factory=list)
    interpreter: str | None = None  # None: the one that base and Python give
    components: dict[str, ComponentUse] = field(default_factory=dict)
    env: dict[str, EnvEntry] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)  # Debian package -> reason
    omits: dict[str, str] = field(default_factory=dict)  # distribution -> why it is left out
    overrides: dict[str, OverrideEntry] = field(default_factory=dict)  # by distribution
    config: dict[ConfigName, CommandEntry | UserEntry | WorkdirEntry] = field(default_factory=dict)
    labels: dict[str, EnvEntry] = field(default_factory=dict)
    files: dict[str, CopyEntry] = field(default_factory=dict)  # by path in the image
    patches: dict[str, PackagePatchEntry] = field(default_factory=dict)  # by path from the project's directory
    ports: dict[str, str] = field(default_factory=dict)  # port -> what listens there
    ldconfig: dict[str, str] = field(default_factory=dict)  # directory of the image -> reason
    accepts: dict[str, str] = field(default_factory=dict)  # rule -> why it only warns


def compose(chain: Sequence[Generation], axes: Mapping[str, str]) -> Composition:
    """Return the content of the last image of `chain` in the cell with these `axes`.

    Each image comes after all of the one that it extends: its removals, its stacks in their order, its entry, then the
    variants that apply, in the same order. What comes later wins.
    """
    made = Composition()
    for each in chain:
        for name in each.image.without:
            _remove(made, name)
        _replace(made, each.image)
        parts: tuple[StackEntry | ImageEntry, ...] = (*each.stacks, each.image)
        for part in parts:
            _add(made, part)
        for variant in _applying(parts, axes):
            _replace(made, variant)
            _add(made, variant)
            for name in variant.without:
                made.components.pop(name, None)
    return made


def removable(made: Composition) -> set[str]:
    """Return the names that `without` of an image can remove: components, variables, Debian packages, overrides."""
    return {name for each in _REMOVABLE for name in getattr(made, each)}


def _remove(made: Composition, name: str) -> None:
    for each in _REMOVABLE:
        getattr(made, each).pop(name, None)


def _replace(made: Composition, part: ImageEntry | VariantEntry) -> None:
    made.base = part.base or made.base
    made.gpus = part.gpus or made.gpus
    made.interpreter = part.interpreter or made.interpreter


def _add(made: Composition, part: PartEntry) -> None:
    for name in PartEntry.model_fields.keys() - {"config", "env"}:
        getattr(made, name).update(getattr(part, name))
    made.env = join_env(made.env, part.env)
    made.config.update({name: each for name in CONFIG_NAMES if (each := getattr(part.config, name))})


def _applying(parts: Sequence[StackEntry | ImageEntry], axes: Mapping[str, str]) -> Iterator[VariantEntry]:
    for part in parts:
        for variant in part.variants:
            if applies(variant.when, axes):
                yield variant


def applies(choice: Mapping[str, Sequence[str]], axes: Mapping[str, str]) -> bool:
    """Return whether each axis that `choice` names has one of its values in a cell of these `axes`."""
    return all(axes[axis] in values for axis, values in choice.items())


@dataclass(frozen=True)
class Definition:
    """The entry that defines a name of a cell, and the place where it does."""

    found: PlacedEntry
    inside: tuple[str | int, ...]  # the path to the name, below the entry

    @property
    def where(self) -> Location:
        return self.found.where(*self.inside)


def definitions(
    chain: Iterable[Sequence[PlacedEntry]],
    axes: Mapping[str, str],
    section: Literal["components", "files", "ldconfig", "overrides", "patches"],
) -> dict[str, Definition]:
    """Return name -> the definition that counts in the cell with these `axes`, of one field of PartEntry.

    `chain` has the stacks of each image and the image itself, in the order of `compose`.
    """
    found: dict[str, Definition] = {}
    for parts in chain:
        for part in parts:
            found |= {name: Definition(part, (section, name)) for name in getattr(part.entry, section)}
        for part in parts:
            for position, variant in enumerate(part.entry.variants):
                if applies(variant.when, axes):
                    found |= {
                        name: Definition(part, ("variants", position, section, name))
                        for name in getattr(variant, section)
                    }
    return found


# Images that extend one another.


def ancestry(found: PlacedEntry, images: Mapping[str, PlacedEntry]) -> tuple[PlacedEntry, ...]:
    """Return the images that `found` extends, the farthest first, and `found` itself.

    The result is empty where one of them is missing, has an error of its own, or is in a cycle.
    """
    chain = [found]
    while chain[0].entry and (name := chain[0].entry.extends):
        if name not in images or any(each.name == name for each in chain):
            return ()
        chain.insert(0, images[name])
    return tuple(chain) if chain[0].entry else ()


def removal_errors(
    found: PlacedEntry, chain: Sequence[Generation], choices: Sequence[Mapping[str, str]]
) -> Iterator[MatrixError]:
    """Yield an error for each name in the image's `without` that no cell of the image that it extends has."""
    without = found.entry.without
    known = {name for choice in choices if without for name in removable(compose(chain[:-1], choice))}
    for position, name in enumerate(without):
        if name not in known:
            what = f'"{name}" removes nothing: {found.entry.extends} has no such component, variable or package'
            fix = did_you_mean(name, known) or f"`imagegen show {found.entry.extends}` lists what it has"
            yield found.error(what, "without", position, fix=fix, key=False)


def cycle_error(found: PlacedEntry, images: Mapping[str, PlacedEntry]) -> MatrixError | None:
    """Return the error of an image that extends itself, directly or through others; None for all others."""
    names = [found.name]
    while (entry := images[names[-1]].entry) and entry.extends in images:
        names.append(entry.extends)
        if names[-1] == found.name:
            what = f'"{found.name}" extends itself: {" -> ".join(names)}'
            return found.error(what, "extends", fix="extend another image, or none", key=False)
        if names[-1] in names[:-1]:
            return None  # it leads into a cycle, whose images have the error
    return None


def inherit(chain: Sequence[PlacedEntry]) -> ImageEntry:
    """Return the last entry of `chain` with the texts, the axes and the GPUs that it does not give itself."""
    whole: ImageEntry = chain[0].entry
    for parent, found in itertools.pairwise(chain):
        own: ImageEntry = found.entry
        fields = {
            "description": own.description or _derived(own, parent.name),
            "purpose": own.purpose or whole.purpose,
            "gpus": own.gpus or whole.gpus,
            "stack": own.stack or whole.stack,
            "axes": {**whole.axes, **own.axes},
            "exclude": [*whole.exclude, *own.exclude],
        }
        whole = own.model_copy(update=fields)
    return whole


def _derived(entry: ImageEntry, parent: str) -> str:
    """Return the description of an image that gives none: what it changes of the one that it extends."""
    added = [f"{name} {use.version}".strip() for name, use in entry.components.items()]
    added += [*entry.packages, *entry.env]
    parts = [f"with {_listed(added)}"] if added else []
    parts += [f"without {_listed(entry.without)}"] if entry.without else []
    return " ".join([parent, *parts]) + "."


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:_NAMED])
    if len(names) > _NAMED:
        shown.append(f"{len(names) - _NAMED} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
