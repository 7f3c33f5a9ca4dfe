"""Finite domains as bitsets. An atom is one value that a name can have; a set of atoms is one integer.

A package is absent or one of its known releases. A package without known releases is one of the pieces into which the
specifiers cut the line of versions; all versions within a piece satisfy the same specifiers. Bit i of a mask is atom i.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from typing import NamedTuple

from packaging.ranges import VersionRange
from packaging.version import Version

from imagegen.compat.clauses import Literal
from imagegen.compat.facts import Fact, versions_in


@dataclass(frozen=True)
class Atom:
    """One of: a release or point (`version`), a piece (`range`), a value (neither, its `text`), or absent.

    An `opaque` piece stands for unknown versions: a literal that may be true of one of them counts as true.
    """

    text: str
    version: Version | None = None
    range: VersionRange | None = None
    absent: bool = False
    opaque: bool = False

    def __str__(self) -> str:
        return self.text or str((self.range and self.range.to_specifier_set()) or "some versions")

    def fits(self, literal: Literal) -> bool:
        if self.absent:
            return not literal.required
        inside = literal.range
        if inside is None:
            glob = literal.text if literal.label is None else literal.label
            return fnmatchcase(self.text, glob) is not literal.negated
        if self.version is not None:
            return (self.version in inside) is not literal.negated
        if self.range is None:  # a value, and the literal is about versions: cuda is "cpu"
            return literal.negated
        cached, is_compared_apart = self._inside, self.opaque and not literal.negated
        if (key := (literal.text, is_compared_apart)) not in cached:
            cached[key] = not self.range.is_disjoint(inside) if is_compared_apart else self.range.is_subset(inside)
        return cached[key] is not literal.negated

    @cached_property
    def _inside(self) -> dict[tuple[str, bool], bool]:
        """Specifiers, and whether they admit all of the piece, or any of it: problems have pieces in common."""
        return {}

    def agrees_with(self, other: Atom) -> bool:
        """Return whether both can be of one public version, labels aside, or the other one is not installed."""
        if other.absent:
            return True
        if self.version is not None and other.version is not None:
            return self.version.public == other.version.public
        publics, other_publics = self._publics, other._publics
        return publics is None or other_publics is None or not publics.is_disjoint(other_publics)

    @property
    def _publics(self) -> VersionRange | None:
        return self.range if self.version is None else versions_in(f"=={self.version.public}")


def agreeing(leaders: Sequence[Atom], followers: Sequence[Atom]) -> dict[int, int]:
    """Return by position the mask of the followers that agree with each leader that is installed."""
    released: dict[str, int] = {}  # by public version
    unreleased = []
    for position, atom in enumerate(followers):
        if atom.version is None:
            unreleased.append((position, atom))
        else:
            released[atom.version.public] = released.get(atom.version.public, 0) | 1 << position
    masks = {}
    for position, leader in enumerate(leaders):
        if leader.absent:
            continue
        candidates = unreleased if leader.version is not None else enumerate(followers)
        released_mask = released.get(leader.version.public, 0) if leader.version is not None else 0
        masks[position] = released_mask | sum(1 << index for index, atom in candidates if leader.agrees_with(atom))
    return masks


PYTHONS = tuple(f"3.{minor}" for minor in range(10, 15))  # the Pythons in question if the facts name none
LATEST = tuple(f"{minor}.99" for minor in PYTHONS)  # the patch releases that stand for them
ABSENT = Atom("not installed", absent=True)
UNREAD = "a release that is not known here"


def points(versions: Iterable[Version]) -> tuple[Atom, ...]:
    return tuple(Atom(str(version), version=version) for version in versions)


class VersionLine(NamedTuple):
    """The line of versions, in pieces that each lie inside or outside of each range that cuts it."""

    pieces: tuple[Atom, ...]
    inside: Mapping[VersionRange, int]  # range -> the mask of the pieces inside it

    def mask(self, literal: Literal) -> int | None:
        """Return the mask of the pieces that a literal admits; None for a range that does not cut the line."""
        admitted = self.inside.get(literal.range) if literal.range is not None else None
        if admitted is None or not literal.negated:
            return admitted
        return admitted ^ ((1 << len(self.pieces)) - 1)


@cache
def cut_line(ranges: tuple[VersionRange, ...]) -> VersionLine:
    """Cut the line of versions into pieces, in lexical order of the ranges that they are inside of.

    The line is halved at the versions that the ranges name, so that each range is compared with the pieces around its
    bounds, not with all of them.
    """
    clauses = (clause for cut in ranges for clause in cut.to_specifier_set() or ())
    texts = {clause.version.removesuffix(".*") for clause in clauses if clause.operator != "==="}
    versions = sorted(map(Version, sorted(texts)))
    bits = [1 << position for position in reversed(range(len(ranges)))]
    pieces: dict[int, list[VersionRange]] = {}  # by the bits of the ranges that they are inside of
    for piece, inside in cut_pieces(versions_in(""), 0, list(zip(ranges, bits, strict=True)), versions):
        pieces.setdefault(inside, []).append(piece)
    rows = [f"{inside:0{len(ranges)}b}" for inside in sorted(pieces)]
    masks = {cut: int("".join(column), 2) for cut, column in zip(ranges, zip(*rows, strict=True), strict=False)}
    return VersionLine(tuple(Atom("", range=_union(pieces[inside])) for inside in sorted(pieces, reverse=True)), masks)


def _union(pieces: Sequence[VersionRange]) -> VersionRange:
    if len(pieces) == 1:
        return pieces[0]
    middle = len(pieces) // 2
    return _union(pieces[:middle]).union(_union(pieces[middle:]))


def cut_pieces(
    piece: VersionRange, inside: int, ranges: list[tuple[VersionRange, int]], versions: Sequence[Version]
) -> Iterator[tuple[VersionRange, int]]:
    """Yield the pieces of a piece that is inside of some ranges by their bits, and on the bounds of `ranges`."""
    if not ranges:
        yield piece, inside
        return
    middle = len(versions) // 2
    cut = VersionRange.from_bounds(lower=versions[middle], prereleases=True) if versions else ranges[0][0]
    halves = (piece.difference(cut), versions[:middle]), (piece.intersection(cut), versions[middle + 1 :])
    for half, half_versions in halves:
        around = sum(bit for other, bit in ranges if half.is_subset(other))
        bounded = [(other, bit) for other, bit in ranges if not around & bit and not half.is_disjoint(other)]
        if not half.is_empty:
            yield from cut_pieces(half, inside | around, bounded, half_versions)


def values(texts: Iterable[str]) -> tuple[Atom, ...]:
    return tuple(Atom(text) for text in texts)


def pythons(fact: Fact | None, candidates: Iterable[str]) -> list[Version]:
    """Return the Pythons in question: a minor version stands for its latest patch release, an exact one for itself."""
    minors = {Version(f"{python}.99") for python in (*PYTHONS, *candidates)}
    return sorted(minors | ({fact.version} if fact and fact.version is not None else set()))


def mask(atoms: Sequence[Atom], literal: Literal) -> int:
    """Return the mask of the atoms that the literal admits."""
    return sum(1 << position for position, atom in enumerate(atoms) if atom.fits(literal))
