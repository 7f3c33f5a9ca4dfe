"""Find regular expressions whose time can grow faster than the text that they are applied to.

`re` backtracks: it follows the ways through a pattern one by one until one matches. How many there are:

    bounded        time grows with the text
    polynomial     states p and q, and one word that leads from p to p, from p to q and from q to q (`a*a*`)
    exponential    a state with two ways back to itself over one word (`(a|a)*`, `(a*)*`)

(Weber and Seidl, "On the degree of ambiguity of finite automata", 1991). In a search, the pattern begins with a state
that skips any text: `a+b` searched for in a text of `a` is quadratic, and `(?<!a)a+b` is linear.

The states are the positions of the pattern (Glushkov's construction). Edges have guards: conditions on the letter
before and the letter after. A way that passes an accepting state ends the search and is not counted. Repeats of at most
`BOUND` are a fixed amount of work, so three stand for all. A possessive repeat of one letter (`[a-z]++`) can be left
only before another letter. All other assertions and groups count as their content, so the answer can be too severe.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import product
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

BOUND = 1000
_COPIES = 3  # of the items of a repeat that is not endless
_IGNORECASE, _MULTILINE, _DOTALL, _ASCII = map(int, (re.IGNORECASE, re.MULTILINE, re.DOTALL, re.ASCII))
_SAMPLE = frozenset(map(chr, range(128))) | set("é\x85\u2028\u0663\u4e00")
_CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d",
    codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w",
    codes.CATEGORY_NOT_WORD: r"\W",
}
_ONE_LETTER = (codes.IN, codes.ANY, codes.LITERAL, codes.NOT_LITERAL)
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
Letter = int | None  # an index of the alphabet; None is the end of the text
Guard = Callable[[Letter, Letter], bool]
_Search = tuple[Hashable, Hashable, Callable[[Any], Iterator[Any]]]  # from a node to another one, by steps
Edge = tuple[int, tuple[Guard, ...]]


@dataclass
class _Fragment:
    """A part of a pattern: edges into it and out of it, and guards of the ways through it that read nothing."""

    first: list[Edge] = field(default_factory=list)
    last: list[Edge] = field(default_factory=list)
    empty: list[tuple[Guard, ...]] = field(default_factory=list)


class Automaton:
    """The automaton of a pattern: state 0 is the start, state 1 skips text in a search."""

    def __init__(self, pattern: str | bytes, flags: int = 0, method: str = "search") -> None:
        tree = parser.parse(pattern, flags)
        self._flags = int(tree.state.flags)
        self._is_bytes = isinstance(pattern, bytes)
        self.is_endless = any(kind in _REPEATS and _is_endless(value[1]) for kind, value in _nodes(tree))
        self.alphabet = self._alphabet(tree, pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern)
        self._newline = self.alphabet.index("\n")
        self._word = self._one([(codes.IN, [(codes.CATEGORY, codes.CATEGORY_WORD)])])
        every = frozenset(range(len(self.alphabet)))
        self._reads = [frozenset(), every]
        self._edges: list[list[Edge]] = [[], []]
        self._leaves: set[Guard] = set()  # guards at the end of possessive repeats
        self._steps: dict[tuple[int, Letter, int], list[int]] = {}
        whole = self._sequence(tree)
        self._edges[0] += whole.first
        if method not in ("match", "fullmatch"):
            self._edges[0].append((1, ()))
            self._edges[1] += [(1, ()), *whole.first]
        self._guarded = {state for state, edges in enumerate(self._edges) if any(guards for _, guards in edges)}
        self._accepting = {
            state
            for state, guards in whole.last
            if self._leaves.issuperset(guards)
            and (method != "fullmatch" or (self._reads[state] == every and (state, ()) in self._edges[state]))
        }

    def _alphabet(self, tree: Any, text: str) -> list[str]:
        """Return one letter for each class of letters that the pattern does not tell apart."""
        letters = {*_SAMPLE, *text, *text.swapcase()} if not self._is_bytes else {*map(chr, range(128)), "\xe9"}
        nodes = {repr(node): node for node in _nodes(tree) if node[0] in _ONE_LETTER}.values()
        flags = {self._flags, self._flags | _IGNORECASE} if "i" in text else {self._flags}
        classes: dict[tuple[bool, ...], str] = {}
        for letter in sorted(letters, key=lambda letter: (not letter.isalnum(), letter)):
            members = [self._has(node, letter, case) for node in nodes for case in flags]
            classes.setdefault((letter == "\n", self._is(codes.CATEGORY_WORD, letter), *members), letter)
        return list(classes.values())

    def _is(self, category: Any, letter: str) -> bool:
        if self._is_bytes:
            return bool(re.match(_CATEGORIES[category].encode(), letter.encode("latin-1")))
        return bool(re.match(_CATEGORIES[category], letter, self._flags & _ASCII))

    def _has(self, node: Any, letter: str, flags: int) -> bool:
        """Whether an item of one letter matches this one."""
        cases = {letter, letter.swapcase()} if flags & _IGNORECASE and len(letter.swapcase()) == 1 else {letter}
        kind, value = node
        match kind:
            case codes.ANY:
                return letter != "\n" or bool(flags & _DOTALL)
            case codes.LITERAL:
                return any(ord(case) == value for case in cases)
            case codes.NOT_LITERAL:
                return all(ord(case) != value for case in cases)
            case codes.RANGE:
                return any(value[0] <= ord(case) <= value[1] for case in cases)
            case codes.CATEGORY:
                return self._is(value, letter)
            case codes.IN:
                negated = value[0][0] is codes.NEGATE
                return any(self._has(item, letter, flags) for item in value[negated:]) != negated
        raise ValueError(f"not supported: {kind}")

    def _one(self, items: Any) -> frozenset[int] | None:
        """Return the letters that the items match, if they match exactly one letter and nothing else."""
        kind, value = items[0] if len(items) == 1 else (None, None)
        if kind in _ONE_LETTER:
            members = enumerate(self._has((kind, value), letter, self._flags) for letter in self.alphabet)
            return frozenset(index for index, is_member in members if is_member)
        if kind is codes.SUBPATTERN:
            return self._one(value[3])
        if kind is codes.BRANCH:
            branches = [self._one(branch) for branch in value[1]]
            return None if None in branches else frozenset().union(*branches)  # type: ignore[arg-type]
        return None

    def _sequence(self, items: Any) -> _Fragment:
        fragment = _Fragment(empty=[()])
        for item in items:
            fragment = self._join(fragment, self._item(*item))
        return fragment

    def _join(self, left: _Fragment, right: _Fragment) -> _Fragment:
        for (state, before), (target, after) in product(left.last, right.first):
            self._edges[state].append((target, before + after))
        return _Fragment(
            left.first + [(state, through + guards) for through in left.empty for state, guards in right.first],
            right.last + [(state, guards + through) for through in right.empty for state, guards in left.last],
            [before + after for before, after in product(left.empty, right.empty)],
        )

    def _item(self, kind: Any, value: Any) -> _Fragment:
        fragment = _Fragment(empty=[()])  # of codes.GROUPREF
        if kind in _ONE_LETTER:
            self._reads.append(self._one([(kind, value)]) or frozenset())
            self._edges.append([])
            edge: Edge = (len(self._reads) - 1, ())
            fragment = _Fragment([edge], [edge])
        elif kind in _REPEATS:
            fragment = self._repeat(kind, *value)
        elif kind is codes.SUBPATTERN:
            _, added, removed, items = value
            flags, self._flags = self._flags, (self._flags | added) & ~removed
            fragment = self._sequence(items)
            self._flags = flags
        elif kind is codes.ATOMIC_GROUP:
            fragment = self._sequence(value)
        elif kind is codes.BRANCH:
            branches = [self._sequence(items) for items in value[1]]
            fragment = _Fragment(
                [edge for branch in branches for edge in branch.first],
                [edge for branch in branches for edge in branch.last],
                [guards for branch in branches for guards in branch.empty],
            )
        elif kind is codes.AT:
            fragment = _Fragment(empty=[(self._at(value),)])
        elif kind in (codes.ASSERT, codes.ASSERT_NOT):
            fragment = self._assertion(kind is codes.ASSERT, *value)
        elif kind is not codes.GROUPREF:
            raise ValueError(f"not supported: {kind}")
        return fragment

    def _repeat(self, kind: Any, low: int, high: Any, items: Any) -> _Fragment:
        if not _is_endless(high):
            return self._copies(items, min(low, _COPIES), min(high, _COPIES))
        fragment = self._copies(items, min(max(low - 1, 0), _COPIES), min(max(low - 1, 0), _COPIES))
        rest = self._sequence(items)
        for (state, before), (target, after) in product(rest.last, rest.first):
            self._edges[state].append((target, before + after))
        leave: tuple[Guard, ...] = ()
        if kind is codes.POSSESSIVE_REPEAT and (one := self._one(items)) is not None:
            leave = (lambda _, after: after not in one,)
            self._leaves.update(leave)
            rest.last = [(state, guards + leave) for state, guards in rest.last]
        if not low:
            rest.empty.append(leave)
        return self._join(fragment, rest)

    def _copies(self, items: Any, low: int, high: int) -> _Fragment:
        """Return items one behind the other; behind the first `low`, each is optional with all that follow it."""
        if not high:
            return _Fragment(empty=[()])
        first = self._sequence(items)
        fragment = self._join(first, self._copies(items, max(low - 1, 0), high - 1))
        if not low:
            fragment.empty.append(())
        return fragment

    def _at(self, anchor: Any) -> Guard:
        newline, word = self._newline, self._word
        match anchor:
            case codes.AT_BEGINNING if self._flags & _MULTILINE:
                return lambda before, _: before is None or before == newline
            case codes.AT_BEGINNING | codes.AT_BEGINNING_STRING:
                return lambda before, _: before is None
            case codes.AT_END:
                return lambda _, after: after is None or after == newline
            case codes.AT_END_STRING:
                return lambda _, after: after is None
            case codes.AT_BOUNDARY:
                return lambda before, after: (before in word) != (after in word)
            case codes.AT_NON_BOUNDARY:
                return lambda before, after: (before in word) == (after in word)
        raise ValueError(f"not supported: {anchor}")

    def _assertion(self, is_positive: bool, direction: int, items: Any) -> _Fragment:
        is_behind = direction < 0
        one = self._one(items[-1:] if is_behind and is_positive else items)
        if one is not None and is_behind:
            return _Fragment(empty=[(lambda before, _: (before in one) == is_positive,)])
        if one is not None:
            return _Fragment(empty=[(lambda _, after: (after in one) == is_positive,)])
        if is_behind:  # of a fixed width
            return _Fragment(empty=[()])
        return _Fragment(self._sequence(items).first, [], [()])  # its end leads nowhere

    def _step(self, state: int, before: Letter, letter: int) -> list[int]:
        """Return the next states, one for each way."""
        key = (state, before, letter)
        if key not in self._steps:
            self._steps[key] = [
                target
                for target, guards in self._edges[state]
                if letter in self._reads[target] and all(guard(before, letter) for guard in guards)
            ]
        return self._steps[key]

    def _following(self, start: int, letters: frozenset[int]) -> set[int]:
        """Return the states that texts of these letters can lead to, guards aside."""
        states: set[int] = set()
        waiting = [start]
        while waiting:
            targets = {target for target, _ in self._edges[waiting.pop()]}
            new = {target for target in targets - states if not letters.isdisjoint(self._reads[target])}
            states |= new
            waiting += new
        return states

    def growth(self) -> tuple[str, str] | None:
        """Return how the number of ways grows and a word whose repetition makes it grow; None if it is bounded."""
        if not self.is_endless:
            return None
        following = [self._following(state, self._reads[1]) for state in range(len(self._edges))]
        loops = {
            state: frozenset(other for other in following[state] if state in following[other])
            for state in sorted(following[0])
            if state in following[state]
        }
        for states in set(loops.values()):
            if not states <= self._accepting and (word := self._two_ways_back(min(states), states)):
                return "exponential", word
        for start, end in product(loops, loops):
            rest = loops[end] - self._accepting
            is_near = start != end and end in rest and end in self._following(start, self._letters(rest))
            if is_near and (word := self._ways_over(start, end, loops[start], rest)):
                return "polynomial", word
        return None

    def _letters(self, states: frozenset[int]) -> frozenset[int]:
        return frozenset[int]().union(*(self._reads[state] for state in states))

    def _two_ways_back(self, state: int, states: frozenset[int]) -> str | None:
        alphabet = self._letters(states)

        def steps(node: Any) -> Iterator[Any]:
            left, right, is_split, before = node
            for letter in alphabet:
                lefts, rights = self._step(left, before, letter), self._step(right, before, letter)
                for (i, a), (j, b) in product(enumerate(lefts), enumerate(rights)):
                    if a in states and b in states:
                        yield letter, (a, b, is_split or left != right or i != j, self._kept(letter, a, b))

        return self._word_between(
            ((state, state, False, letter), (state, state, True, letter), steps)
            for letter in {self._kept(letter, state) for letter in self._reads[state]}
        )

    def _ways_over(self, start: int, end: int, first: frozenset[int], last: frozenset[int]) -> str | None:
        alphabet = self._letters(last)

        def steps(node: Any) -> Iterator[Any]:
            x, y, z, before = node
            for letter in alphabet:
                if heads := first.intersection(self._step(x, before, letter)):
                    tails = last.intersection(self._step(z, before, letter))
                    middles = self._step(y, before, letter) if tails else ()
                    for a, b, c in product(heads, middles, tails):
                        yield letter, (a, b, c, self._kept(letter, a, b, c))

        # The same guards must hold before and after the word.
        letters = {self._kept(letter, start, end) for letter in self._reads[start] & self._reads[end]}
        return self._word_between(((start, start, end, letter), (start, end, end, letter), steps) for letter in letters)

    def _kept(self, letter: int, *states: int) -> Letter:
        """Return the letter that was read if it matters for the next one: if an edge out of a state has guards."""
        return letter if self._guarded.intersection(states) else None

    def _word_between(self, searches: Iterator[_Search]) -> str | None:
        """Return the letters of a way from one node to another."""
        for source, goal, steps in searches:
            origins: dict[Any, tuple[str, Any]] = {source: ("", None)}
            waiting = deque([source])
            while waiting and goal not in origins:
                node = waiting.popleft()
                for letter, target in steps(node):
                    if target not in origins:
                        origins[target] = self.alphabet[letter], node
                        waiting.append(target)
            if goal in origins:
                word = ""
                node = goal
                while node != source:
                    letter_before, node = origins[node]
                    word = letter_before + word
                return word
        return None


def _is_endless(most: Any) -> bool:
    return most is codes.MAXREPEAT or most > BOUND


def _nodes(items: Any) -> Iterator[Any]:
    """All items of a parsed pattern, and the items in them."""
    for kind, value in items:
        yield kind, value
        match kind:
            case codes.SUBPATTERN:
                yield from _nodes(value[3])
            case codes.ATOMIC_GROUP:
                yield from _nodes(value)
            case codes.BRANCH:
                for branch in value[1]:
                    yield from _nodes(branch)
            case codes.MAX_REPEAT | codes.MIN_REPEAT | codes.POSSESSIVE_REPEAT:
                yield from _nodes(value[2])
            case codes.ASSERT | codes.ASSERT_NOT:
                yield from _nodes(value[1])
