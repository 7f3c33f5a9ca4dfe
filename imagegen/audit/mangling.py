"""The codes of mangled C++ names, and how types are written around a name. Source: Itanium C++ ABI, section 5.1."""

from __future__ import annotations

from dataclasses import dataclass


def _table(text: str) -> dict[str, str]:
    """`code text` on each line."""
    pairs = (line.strip().partition(" ") for line in text.strip().splitlines())
    return {code: meaning for code, _, meaning in pairs}


BUILTIN = _table("""
    v void
    w wchar_t
    b bool
    c char
    a signed char
    h unsigned char
    s short
    t unsigned short
    i int
    j unsigned int
    l long
    m unsigned long
    x long long
    y unsigned long long
    n __int128
    o unsigned __int128
    f float
    d double
    e long double
    g __float128
    z ...
    Dn decltype(nullptr)
    Di char32_t
    Ds char16_t
    Du char8_t
    Da auto
""")
STANDARD = _table("""
    Sa std::allocator
    Sb std::basic_string
    Ss std::string
    Si std::istream
    So std::ostream
    Sd std::iostream
    St std
""")
SPECIAL = _table("""
    TV vtable for
    TT VTT for
    TI typeinfo for
    TS typeinfo name for
    TH TLS init function for
    TW TLS wrapper function for
    GV guard variable for
""")
_NAMED = {"nw": " new", "na": " new[]", "dl": " delete", "da": " delete[]"}
_SIGNS = (
    "ps+ ng- ad& de* co~ pl+ mi- ml* dv/ rm% an& or| eo^ aS= pL+= mI-= mL*= dV/= rM%= aN&= oR|= eO^= ls<< rs>> lS<<= "
    "rS>>= eq== ne!= lt< gt> le<= ge>= ss<=> nt! aa&& oo|| pp++ mm-- cm, pm->* pt-> cl() ix[] qu?"
)
OPERATORS = _NAMED | {sign[:2]: sign[2:] for sign in _SIGNS.split()}
SUFFIXES = {"i": "", "j": "u", "l": "l", "m": "ul", "x": "ll", "y": "ull"}  # of numbers as template arguments
QUALIFIERS = {"r": " restrict", "V": " volatile", "K": " const"}
REFERENCES = {"R": " &", "O": " &&"}  # behind a member function
POINTERS = {"P": "*", "R": "&", "O": "&&"}


@dataclass(frozen=True, slots=True)
class Type:
    """Text around a declared name: `void (*` and `)(int)`. `raw` marks functions "f" and arrays "a" themselves."""

    left: str
    right: str = ""
    raw: str = ""

    def __str__(self) -> str:
        return self.left + self.right


Argument = Type | tuple[Type, ...]  # of a template: a type or a value, or a pack of them


@dataclass(frozen=True, slots=True)
class Name:
    """`last` is what constructors are called; `returns`: a template's function says first what it returns."""

    text: str
    last: str = ""
    returns: bool = False
    qualifiers: str = ""


def pointer(to: Type, mark: str) -> Type:
    """A pointer or reference (`*`, `&`, `&&`)."""
    if to.raw:
        return Type(f"{to.left}({mark}", ")" + (" " if to.raw == "a" else "") + to.right)
    if mark != "*" and to.left.endswith("&"):  # a reference to a reference is one
        left = to.left.rstrip("&")
        return Type(left + ("&&" if mark == "&&" and to.left.endswith("&&") else "&"), to.right)
    return Type(to.left + mark, to.right)


def member(owner: Type, of: Type) -> Type:
    """A pointer to a member of `owner`."""
    return Type(of.left + ("(" if of.raw else " ") + f"{owner}::*", (")" if of.raw else "") + of.right)


def qualified(of: Type, words: str) -> Type:
    if of.raw == "f":
        return Type(of.left, of.right + words, "f")
    return of if of.left.endswith((words, "&")) else Type(of.left + words, of.right, of.raw)


def template(arguments: tuple[Argument, ...]) -> str:
    flat = [str(one) for each in arguments for one in (each if isinstance(each, tuple) else (each,))]
    text = ", ".join(flat)
    return f"<{text} >" if text.endswith(">") else f"<{text}>"


def base(text: str) -> str:
    """What the constructors of a class are called: the last part of its name, without template arguments."""
    depth = end = 0
    for at in range(len(text) - 1, -1, -1):
        if text[at] == ">":
            depth += 1
        elif text[at] == "<":
            depth -= 1
            end = at if depth == 0 else end
        elif text[at] == ":" and depth == 0:
            return text[at + 1 : end or len(text)]
    return text[: end or len(text)]
