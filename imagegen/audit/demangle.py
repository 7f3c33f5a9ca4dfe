"""C++ symbols as people wrote them, for evidence.

The Itanium C++ ABI (section 5.1, "External Names"), as far as functions and data of real libraries need it; expressions
in templates are left out. Written here since symbols are hostile input: some hundred bytes can stand for gigabytes,
and a C library would write these down inside of this process. Every text is bounded, and so is the depth. It agrees
with c++filt on 99.8 % of the names in the index of torch's exports and leaves 0.2 % as they are (2026-11-21).
"""

from __future__ import annotations

import re
from functools import lru_cache

from imagegen.audit.mangling import (
    BUILTIN,
    OPERATORS,
    POINTERS,
    QUALIFIERS,
    REFERENCES,
    SPECIAL,
    STANDARD,
    SUFFIXES,
    Argument,
    Name,
    Type,
    base,
    member,
    pointer,
    qualified,
    template,
)

_LONGEST = 2048  # characters of a symbol; those of the index have up to 640
_LONGEST_TEXT = 1 << 14  # characters of what any part of it stands for
_DEEPEST = 60
_MOST = 10_000  # types; a pack within packs is read anew for each element

_THUNK = re.compile(r"T(?:h(?P<non>n?\d+_)|vn?\d+_n?\d+_)")
_NUMBER, _COUNT, _SEQUENCE = re.compile(r"\d+"), re.compile(r"(\d*)_"), re.compile(r"([0-9A-Z]{0,6})_")
_LITERAL, _DISCRIMINATOR = re.compile(r"(n?)(\d+)E"), re.compile(r"_(?:\d|_\d+_)")
_LONG_STRING = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >"
_ANONYMOUS = "_GLOBAL__N"


class _Strange(Exception):
    """It is no mangled name, or a part of one that is not read here."""


@lru_cache(maxsize=4096)
def demangle(name: str) -> str:
    """`name` as C++; as it stands where it is not of C++, or cannot be read."""
    if not name.startswith("_Z") or len(name) > _LONGEST:
        return name
    try:
        return _Reader(name).whole().replace(_LONG_STRING, "std::__cxx11::string")
    except (_Strange, IndexError):
        return name


class _Reader:
    """One symbol, read from left to right by recursive descent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.at = 2
        self.depth = self.count = 0
        self.known: list[Type] = []  # what S_, S0_, ... stand for
        self.arguments: tuple[Argument, ...] = ()  # what T_, T0_, ... stand for
        self.element: int | None = None  # of packs, while one is spread

    def whole(self) -> str:
        text = self.encoding(local=False)
        if self.at != len(self.name):
            raise _Strange
        return text

    def peek(self, count: int = 1) -> str:
        return self.name[self.at : self.at + count]

    def take(self, text: str) -> bool:
        if self.name.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self.name, self.at)
        if found is None:
            raise _Strange
        self.at = found.end()
        return found

    def remember(self, one: Type) -> Type:
        if len(one.left) + len(one.right) > _LONGEST_TEXT or len(self.known) > _LONGEST:
            raise _Strange
        self.known.append(one)
        return one

    def encoding(self, *, local: bool) -> str:
        """A function with its parameters, data, or what the compiler makes for one. Local: inside of another name."""
        if (says := SPECIAL.get(code := self.peek(2))) is not None:
            self.at += 2
            of_type = code in ("TV", "TT", "TI", "TS")
            return f"{says} {self.type() if of_type else self.full_name(keep=False).text}"
        if thunk := _THUNK.match(self.name, self.at):
            self.at = thunk.end()
            self.deeper()
            return ("non-virtual" if thunk["non"] else "virtual") + " thunk to " + self.encoding(local=local)
        outer, self.arguments = self.arguments, self.arguments
        name = self.full_name(keep=True)
        if self.at == len(self.name) or self.peek() == "E":
            return name.text
        returned = self.type() if name.returns else None
        parameters = self.parameters()
        if local:
            self.arguments = outer
        if returned is None or local:
            return f"{name.text}{parameters}{name.qualifiers}"
        space = "" if returned.left.endswith(("(*", " ")) else " "
        return f"{returned.left}{space}{name.text}{parameters}{name.qualifiers}{returned.right}"

    def parameters(self) -> str:
        """Types up to the end of the function, which stays unread."""
        found: list[str] = []
        length = 0
        while self.at < len(self.name) and self.peek() != "E" and self.peek(2) not in ("RE", "OE"):
            some = [str(one) for one in self.spread()]
            length += sum(map(len, some))
            if length > _LONGEST_TEXT:
                raise _Strange
            found += some
        return "(" + ("" if found == ["void"] else ", ".join(found)) + ")"

    def spread(self) -> tuple[Type, ...]:
        """A type, or those that a pack expansion stands for."""
        if not self.take("Dp"):
            return (self.type(),)
        start, known = self.at, len(self.known)
        packs = {len(one) for one in self.arguments if isinstance(one, tuple)}
        count = max(packs, default=0)
        found: list[Type] = []
        outer = self.element
        for index in range(max(count, 1)):
            self.at, self.element = start, index
            if index:
                before, self.known = self.known, self.known[:known]
                found.append(self.type())
                self.known = before
            else:
                found.append(self.type())
        self.element = outer
        found = found[:count] if any(map(str, found)) else []
        self.remember(Type(", ".join(map(str, found))))
        return tuple(found)

    def deeper(self) -> None:
        self.depth, self.count = self.depth + 1, self.count + 1
        if self.depth > _DEEPEST or self.count > _MOST:
            raise _Strange

    def type(self) -> Type:
        self.deeper()
        found = self._builtin() or self._standing_for() or self.remember(self._made())
        self.depth -= 1
        if len(found.left) + len(found.right) > _LONGEST_TEXT:
            raise _Strange
        return found

    def _builtin(self) -> Type | None:
        for length in (1, 2):
            if (builtin := BUILTIN.get(self.peek(length))) is not None:
                self.at += length
                return Type(builtin)
        return None

    def _standing_for(self) -> Type | None:
        """What was said before, or stands for an argument of the template; with template arguments of its own."""
        if self.peek() == "T":
            found = self.remember(self._parameter())
        elif self.peek() == "S" and self.peek(2) != "St":
            found = self._substitution()
        else:
            return None
        return self.remember(Type(f"{found}{self._template(keep=False)}")) if self.peek() == "I" else found

    def _made(self) -> Type:
        """A type of other types, or a class."""
        first = self.peek()
        if first in QUALIFIERS:
            words = self._words()
            return qualified(self.type(), words)
        if first in POINTERS:
            self.at += 1
            return pointer(self.type(), POINTERS[first])
        if self.take("F"):
            return self._function()
        if self.take("A"):
            size = self.match(_NUMBER)[0]
            self.at += 1
            of = self.type()
            return Type(of.left + " ", f"[{size}]" + of.right.lstrip(), "a")
        if self.take("M"):
            owner = self.type()
            return member(owner, self.type())
        return Type(self._source() if self.take("u") else self.full_name(keep=False).text)

    def _words(self) -> str:
        words = ""
        while (word := QUALIFIERS.get(self.peek())) is not None:
            self.at += 1
            words = word + words
        return words

    def _function(self) -> Type:
        self.take("Y")
        returned = self.type()
        right = self.parameters() + self._reference()
        self._end()
        return Type(f"{returned.left} ", right + returned.right, "f")

    def _reference(self) -> str:
        word = REFERENCES.get(self.peek(), "")
        self.at += bool(word)
        return word

    def _index(self) -> int:
        digits = self.match(_SEQUENCE)[1]
        return int(digits, 36) + 1 if digits else 0

    def _parameter(self) -> Type:
        self.at += 1
        found = self.arguments[self._index()]
        if isinstance(found, Type):
            return found
        if self.element is None:
            return Type(", ".join(map(str, found)))
        return found[self.element] if self.element < len(found) else Type("")

    def _substitution(self) -> Type:
        if (standard := STANDARD.get(self.peek(2))) is not None:
            self.at += 2
            return Type(standard)
        self.at += 1
        return self.known[self._index()]

    def full_name(self, *, keep: bool) -> Name:
        """A name with all that it lies in. `keep` its template arguments for what follows it."""
        if self.take("N"):
            return self._nested(keep=keep)
        if self.take("Z"):
            return self._local(keep=keep)
        start, inside = self.at, "std::" if self.take("St") else ""
        if not inside and self.peek() == "S":
            one = self._substitution()
            return Name(f"{one}{self._template(keep=keep)}", returns=True)
        name = self._unqualified("")
        text = inside + name.text
        if self.peek() != "I" or self.at == start:
            return Name(text, name.last, returns=False)
        self.remember(Type(text))
        return Name(text + self._template(keep=keep), name.last, returns=True)

    def _nested(self, *, keep: bool) -> Name:
        qualifiers = self._words() + self._reference()
        text, last, plain, returns = "", "", False, False
        while not self.take("E"):
            first, new = self.peek(), True
            if first == "I":
                text, returns = text + self._template(keep=keep), not plain
            elif first == "S":
                text, new = str(self._substitution()), False
                last = base(text)
            elif first == "T":
                text = str(self._parameter())
                last = base(text)
            else:
                name = self._unqualified(last)
                text, plain, returns = (f"{text}::" if text else "") + name.text, not name.last, False
                last = name.last or last
            if new and self.peek() != "E":
                self.remember(Type(text))
        return Name(text, last, returns, qualifiers)

    def _local(self, *, keep: bool) -> Name:
        self.deeper()
        outer = self.encoding(local=True)
        self.depth -= 1
        self._end()
        name = Name("string literal") if self.take("s") else self.full_name(keep=keep)
        if found := _DISCRIMINATOR.match(self.name, self.at):
            self.at = found.end()
        return Name(f"{outer}::{name.text}", name.last, name.returns, name.qualifiers)

    def _unqualified(self, owner: str) -> Name:
        """One part of a name. Constructors, destructors and conversions have no `last`: they return nothing."""
        self.take("L")
        two = self.peek(2)
        if two[:1].isdigit():
            text = self._source()
            name = Name(text, text)
        elif two in ("C1", "C2", "C3", "C4", "D0", "D1", "D2", "D4"):
            self.at += 2
            name = Name(("~" if two[0] == "D" else "") + owner)
        elif two == "cv":
            self.at += 2
            name = Name(f"operator {self.type()}")
        elif two in OPERATORS:
            self.at += 2
            sign = OPERATORS[two] + (" " if two in ("ls", "lt") and self.peek() == "I" else "")
            name = Name(f"operator{sign}", f"operator{sign}")
        elif two in ("Ul", "Ut"):
            self.at += 2
            says = f"lambda{self.parameters()}" if two == "Ul" else "unnamed type"
            self.at += two == "Ul"
            number = self.match(_COUNT)[1]  # none, 0, 1: the first, second, third
            name = Name(f"{{{says}#{int(number[:6]) + 2 if number else 1}}}", says)
        else:
            raise _Strange
        tags = ""
        while self.take("B"):
            tags += f"[abi:{self._source()}]"
        return Name(name.text + tags, name.last)

    def _source(self) -> str:
        length = int(self.match(_NUMBER)[0][:6])
        text = self.peek(length)
        if len(text) < length or not text:
            raise _Strange
        self.at += length
        return "(anonymous namespace)" if text.startswith(_ANONYMOUS) else text

    def _template(self, *, keep: bool) -> str:
        if not self.take("I"):
            raise _Strange
        found = tuple(self._arguments())
        if keep:
            self.arguments = found
        text = template(found)
        if len(text) > _LONGEST_TEXT:
            raise _Strange
        return text

    def _arguments(self) -> list[Argument]:
        """Template arguments up to their end, which is read too."""
        self.deeper()
        found: list[Argument] = []
        while not self.take("E"):
            if self.take("J"):
                inner = self._arguments()
                found.append(tuple(one for one in inner if isinstance(one, Type)))
            elif self.peek() == "L":
                found.append(self._literal())
            elif self.take("X"):
                found.append(self._expression())
            elif self.peek(2) == "Dp":
                found += self.spread()
            else:
                found.append(self.type())
        self.depth -= 1
        return found

    def _literal(self) -> Type:
        self.at += 1
        kind = self.peek()
        if self.peek(2) == "_Z":
            self.at += 2
            text = self.encoding(local=False)
            self.at += 1
            return Type(text)
        of = self.type()
        minus, digits = self.match(_LITERAL).groups()
        if kind == "b":
            return Type({"0": "false", "1": "true"}.get(digits, digits))
        value = ("-" if minus else "") + digits
        return Type(value + SUFFIXES[kind] if kind in SUFFIXES else f"({of}){value}")

    def _expression(self) -> Type:
        """A parameter, or the address of a function; nothing else is read."""
        if self.peek() == "T":
            found = self._parameter()
        elif self.take("adL_Z"):
            outer = self.arguments
            name = self.full_name(keep=True)
            if self.peek() != "E":
                if name.returns:
                    self.type()
                self.parameters()
            self.arguments = outer
            found = Type(f"&{name.text}")
            self._end()
        else:
            raise _Strange
        self._end()
        return found

    def _end(self) -> None:
        if not self.take("E"):
            raise _Strange
