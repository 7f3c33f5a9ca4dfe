"""Imports between packages: exported names, uses and their guards, names that do not exist."""

from __future__ import annotations

import ast
import importlib
import itertools
import sys
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.audit.api import Api, RequiredName, exports
from imagegen.audit.api.exports import Module
from imagegen.audit.api.required import called, required, tops_of
from imagegen.audit.api.source import LONGEST, walk
from imagegen.audit.api.uses import NameUse, uses
from tools.harvest.signatures import Signatures, Source

NAMES = ("one", "two", "three")
_NUMBERS = itertools.count()

# Statements that bind a name, at module level.
BINDINGS = (
    "{name} = 1",
    "{name}: int = 1",
    "(_, [{name}]) = 1, [2]",
    "def {name}(): pass",
    "async def {name}(): pass",
    "class {name}: pass",
    "import os as {name}",
    "import os.path as {name}",
    "from os import path as {name}",
    "for {name} in [1]: pass",
    "with __import__('contextlib').nullcontext() as {name}: pass",
    "print(({name} := 1), end='')",
    "match 1:\n    case {name}: pass",
    "if not [].append(1):\n    {name} = 1",
    "try:\n    {name} = 1\nexcept ValueError:\n    pass",
    "def _set():\n    global {name}\n    {name} = 1\n_set()",
)


def module(source: str, name: str = "package.module") -> Module:
    """Return the exports of one module."""
    return exports({f"{name.replace('.', '/')}.py": source.encode()})[name]


@given(st.lists(st.tuples(st.sampled_from(BINDINGS), st.sampled_from(NAMES)), max_size=4))
def test_every_name_that_running_a_module_binds_is_exported(statements: list[tuple[str, str]]) -> None:
    source = "\n".join(text.format(name=name) for text, name in statements)
    space: dict[str, object] = {}
    exec(source, space)
    found = module(source)
    assert {name for name in space if name in NAMES} == {name for name in found.names if name in NAMES}
    assert not found.open


@pytest.mark.parametrize(
    "source",
    [
        "globals().update(a=1)",
        "globals()['a'] = 1",
        "vars()['a'] = 1",
        "exec('a = 1')",
        "import sys\nsys.modules[__name__] = object()",
        "import sys\nsetattr(sys.modules[__name__], 'a', 1)",
        "def __getattr__(name): return 1",
        "from lazy import attach\n__getattr__, __dir__, __all__ = attach(__name__)",
        "def __getattr__(name):\n    if name.startswith('x'):\n        return 1\n    raise AttributeError(name)",
        "no Python = at all",
    ],
)
def test_a_module_may_define_any_name_that_code_computes(source: str) -> None:
    assert module(source).open


@given(st.lists(st.tuples(st.sampled_from(BINDINGS), st.sampled_from(NAMES)), max_size=4), st.booleans())
def test_bodies_of_functions_do_not_change_what_is_exported(statements: list[tuple[str, str]], text: bool) -> None:
    body = (
        'def many():\n    """Text.\ndef inside(): pass\n    """\n    return 1\n'
        if text
        else "class A(\n    B,\n):\n    x = 1\n"
    )
    source = body + "\n".join(line.format(name=name) for line, name in statements) + "\n" + body.replace("A", "C")
    assert module(source).names >= {name for _, name in statements}
    assert "inside" not in module(source).names


@pytest.mark.parametrize(
    "source", ["x = globals()['__file__']", "def f(): return globals().get('a')", "def f():\n    setattr(f, 'a', 1)"]
)
def test_reading_the_names_of_a_module_defines_none(source: str) -> None:
    assert not module(source).open


def test_a_getattr_that_shows_its_names_defines_those_alone() -> None:
    found = module(
        """
TABLE = {"LLM": ".llm:LLM", "Engine": ".engine:Engine"}
def __getattr__(name):
    "Import on demand."
    import warnings
    if name in TABLE:
        return 1
    elif name == "old":
        return 2
    if name in REMOVED:
        raise AttributeError(REMOVED[name])
    if name == "gone":
        raise AttributeError(name)
    raise AttributeError(name)
"""
    )
    assert not found.open
    assert found.names >= {"LLM", "Engine", "old"}
    assert not found.names & {"new", "gone"}


def test_a_lazy_module_defines_the_names_that_it_lists_and_those_of_modules_below() -> None:
    sources = {
        "library/__init__.py": b"""
import sys
_import_structure = {"utils": ["helper"], "models.auto": ["AutoModel"]}
sys.modules[__name__] = _LazyModule(__name__, globals()["__file__"], define_import_structure(_import_structure))
setattr(sys.modules[__name__], f"{__name__}.moved", 1)
""",
        "library/models/new.py": b"class NewModel: pass",
        "library/models/auto.py": b"def deepspeed(): pass",
    }
    api = Api(exports(sources))
    assert [api.missing(f"library.{name}") for name in ("helper", "AutoModel", "NewModel", "moved")] == [None] * 4
    assert api.missing("library.deepspeed") is None
    assert api.missing("library.deepspeed.Config", 2) == "library.deepspeed"
    assert api.missing("library.OldModel") == "library.OldModel"


def test_a_compiled_module_and_a_namespace_may_hold_anything() -> None:
    api = Api(exports({"space/package/_C.abi3.so": None, "space/package/__init__.py": b"", "space/package/a.pyi": b""}))
    assert api.missing("space.package._C.kernel") is None
    assert api.missing("space.other.module.name", 3) is None
    assert api.missing("space.package.a", 2) == "space.package.a"


@given(st.binary())
def test_any_bytes_are_a_module_that_may_define_anything_or_some_names(source: bytes) -> None:
    found = exports({"a.py": source})["a"]
    assert found.open or isinstance(found.names, frozenset)
    assert all(isinstance(each, NameUse) for each in uses("a.py", source, {"b"}))


@pytest.mark.parametrize("source", [b"#" * (LONGEST + 1), b"(" * 5000, b"-" * 100_000 + b"1", b"\0", b"\xff\xfe"])
def test_sources_that_no_parser_should_read_are_open(source: bytes) -> None:
    assert exports({"a.py": source})["a"].open
    assert uses("a.py", source, {"b"}) == []


# Uses.

# (statements around the import, whether it is lazy then, whether it is guarded then)
AROUND = (
    ("if True:\n    {}", False, True),
    ("def f():\n    if config.fast:\n        {}", True, False),
    ("def f():\n    {}", True, False),
    ("async def f():\n    {}", True, False),
    ("class A:\n    {}", False, False),
    ("try:\n    {}\nexcept ValueError:\n    pass", False, False),
    ("try:\n    {}\nexcept ImportError:\n    raise RuntimeError", False, False),
    ("try:\n    {}\nexcept ImportError:\n    pass", False, True),
    ("try:\n    {}\nexcept (ValueError, ModuleNotFoundError):\n    x = None", False, True),
    ("try:\n    {}\nexcept:\n    pass", False, True),
    ("try:\n    import a\nexcept ImportError:\n    {}", False, True),
    ("try:\n    import a\nfinally:\n    {}", False, False),
    ("if is_engine_available():\n    {}", False, False),
    ("if importlib.util.find_spec('engine') is not None:\n    {}", False, False),
    ("if is_other_available():\n    {}", False, True),
    ("def f():\n    if version >= 3:\n        {}\n    else:\n        pass", True, True),
    ("def f():\n    if hasattr(x, 'y'):\n        return\n    {}", True, True),
    ("NEW = engine_version > 1\ndef f():\n    if NEW:\n        {}", True, True),
    ("if TYPE_CHECKING:\n    pass\nelse:\n    {}", False, False),
    ("with suppress(ImportError):\n    {}", False, True),
    ("with open(x):\n    {}", False, False),
    ("for x in y:\n    {}", False, False),
    ("while x:\n    {}", False, False),
    ("match x:\n    case 1:\n        {}", False, False),
)


@given(st.lists(st.sampled_from(AROUND), max_size=4))
def test_a_use_is_lazy_or_guarded_by_what_stands_around_it(around: list[tuple[str, bool, bool]]) -> None:
    source = "from engine.core import Worker"
    for text, _, _ in around:
        before, _, after = text.partition("{}")
        indent = before[before.rfind("\n") + 1 :]
        source = before[: len(before) - len(indent)] + textwrap.indent(source, indent) + after
    (found,) = uses("user/a.py", source.encode(), {"engine"})
    assert (found.name, found.modules) == ("engine.core.Worker", 2)
    inside = [any(lazy for _, lazy, _ in around[place:]) for place in range(len(around) + 1)]
    assert found.lazy == inside[0]
    certain = [
        guarded for place, (text, _, guarded) in enumerate(around) if text != AROUND[0][0] or not inside[place + 1]
    ]
    assert found.guarded == any(certain)


def test_what_only_type_checkers_read_is_no_use() -> None:
    assert uses("a.py", b"if TYPE_CHECKING:\n    from engine import A", {"engine"}) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import engine.core\nengine.core.run()", ["engine.core", "engine.core.run"]),
        ("import engine.core as c\nc.run.fast", ["engine.core", "engine.core.run", "engine.core.run.fast"]),
        ("from engine import core\ncore.run", ["engine.core", "engine.core.run"]),
        ("from engine import core\ncore = 1\ncore.run", ["engine.core"]),
        ("from engine import core\ndef f(core): core.run", ["engine.core"]),
        ("from engine import core\ncore.run = 1", ["engine.core"]),
        ("from engine import core\nimport other as core\ncore.run", ["engine.core"]),
        ("from engine.core import *", ["engine.core"]),
        ("from . import engine\nfrom .engine import x\nimport engineering", []),
    ],
)
def test_attributes_of_imported_names_are_uses(source: str, expected: list[str]) -> None:
    assert sorted({each.name for each in uses("user/a.py", source.encode(), {"engine"})}) == expected


def test_a_conditional_expression_guards_its_attributes() -> None:
    found = uses("a.py", b"import engine\nx = engine.new if hasattr(engine, 'new') else 1", {"engine"})
    assert {each.name: each.guarded for each in found} == {"engine": False, "engine.new": True}


def test_a_function_that_only_guarded_code_calls_is_guarded() -> None:
    source = b"""
def old():
    helper()
def helper():
    from engine import Old
def new():
    from engine import New
run = old if engine_version < 2 else print
new()
"""
    assert {each.name: each.guarded for each in uses("a.py", source, {"engine"})} == {
        "engine.Old": True,
        "engine.New": False,
    }


def test_attributes_of_a_guarded_import_are_guarded() -> None:
    source = b"try:\n    from engine import Mode\nexcept ImportError:\n    Mode = None\ndef f(): return Mode.fast"
    assert {each.guarded for each in uses("a.py", source, {"engine"})} == {True}


# Calls.


def keywords(source: str, called: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Return the keywords of calls that are no guess, by what is called."""
    found: dict[str, list[str]] = {}
    for each in uses("user/a.py", source.encode(), {"engine", "user"}, called):
        if each.keyword and not each.guarded:
            found.setdefault(each.name, []).append(each.keyword + ("?" if each.lazy else ""))
    return found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from engine import LLM\nLLM('x', model=1, dtype=2)", {"engine.LLM": ["dtype", "model"]}),
        ("import engine as e\ndef f(): e.core.LLM(model=1)", {"engine.core.LLM": ["model?"]}),
        ("from engine import LLM\nLLM(model=1, **more)", {}),
        ("from engine import LLM\ndef f(LLM): LLM(model=1)", {}),
        ("from engine import LLM\nLLM = None\nLLM(model=1)", {}),
        ("from engine import LLM\ntry:\n    LLM(model=1)\nexcept TypeError:\n    LLM()", {}),
        ("from engine import LLM\nif engine_version > 1:\n    LLM(model=1)", {}),
        ("try:\n    from engine import LLM\nexcept ImportError:\n    LLM = None\nLLM(model=1)", {}),
        ("from engine import LLM\nx = LLM(model=1) if new else None", {}),
        ("from engine import A\nclass B(A):\n    def __init__(self): super().__init__(x=1)", {"engine.A": ["x?"]}),
        ("from engine import A\nclass B(A, C):\n    def __init__(self): super().__init__(x=1)", {}),
        ("from engine import A\nclass B(A):\n    def f(self): super().f(x=1)", {}),
    ],
)
def test_keywords_of_calls_of_imported_names_are_uses(source: str, expected: dict[str, list[str]]) -> None:
    assert keywords(source) == expected


# (the function `main`, whether normal use that calls it is certain to call LLM)
MAINS = (
    ("LLM(model=1)", True),
    ("if not is_engine_available():\n        raise ImportError\n    LLM(model=1)", True),
    ("Process(target=worker)", True),
    ("for each in range(2):\n        worker()", True),
    ("if x:\n        LLM(model=1)", False),
    ("if x:\n        return\n    LLM(model=1)", False),
    ("if x:\n        worker()", False),
    ("def inside(): LLM(model=1)", False),
    ("x = lambda: LLM(model=1)", False),
    ("match x:\n        case 1: LLM(model=1)", False),
)


@pytest.mark.parametrize(("body", "certain"), MAINS)
def test_a_function_that_normal_use_calls_is_certain_to_run(body: str, certain: bool) -> None:
    worker = "def worker(): LLM(model=1)\n" if "worker" in body else ""
    source = f"from engine import LLM\n{worker}def main():\n    {body}\nif __name__ == '__main__':\n    main()\n"
    assert (keywords(source, ("main",)) == {"engine.LLM": ["model"]}) == certain


# Signatures.

SIGNATURES = {
    "engine": """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from engine.llm import LLM
    from .llm import Old
def __getattr__(name): ...
""",
    "engine.llm": """
import dataclasses
from engine.args import Args, wrapped, changed, Mixin
import msgspec, pydantic
class LLM(Mixin):
    @wrapped(start=2)
    def __init__(self, model, *, dtype="auto", **kwargs):
        if "log" not in kwargs:
            kwargs["log"] = True
        self.args = Args(model=model, **kwargs)
class Old(LLM): pass
class Changed:
    @changed
    def __init__(self, model): ...
class Swallows:
    def __init__(self, **kwargs): ...
class Passes:
    def __init__(self, **kwargs): self.more = kwargs
class Sometimes:
    def __init__(self, x, **kwargs):
        if x:
            Args(**kwargs)
class Outside(Unknown): pass
class Meta(metaclass=M): pass
class Record(Mixin, msgspec.Struct, omit_defaults=True):
    n: int = 1
class Subrecord(Record, kw_only=True):
    m: int = 2
class Model(pydantic.BaseModel):
    n: int
class New:
    def __new__(cls, **kwargs): ...
class Child(Args):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
def plain(a, /, b, *, c): ...
def star(*args, **kwargs): return plain(*args, **kwargs)
def local(**kwargs):
    plain = object
    plain(**kwargs)
def pops(**kwargs):
    kwargs.pop("d", None)
    plain(1, **kwargs)
if True:
    def twice(a): ...
def both(a): ...
both = 1
""",
    "engine.args": """
import functools
from dataclasses import dataclass, field
class Mixin:
    def convert(self): ...
@dataclass
class Base:
    seed: int = 0
@dataclass(frozen=True)
class Args(Base):
    model: str = ""
    extension: str = field(default="")
def wrapped(start):
    def wrapper(fn):
        @functools.wraps(fn)
        def inner(*args, **kwargs):
            if kwargs.keys() & {"old"}:
                print(args)
            return fn(*args, **kwargs)
        return inner
    return wrapper
def changed(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        kwargs["model"] = kwargs.pop("old")
        return fn(*args, **kwargs)
    return inner
""",
}


def engine_source(module: str) -> Source | None:
    text = SIGNATURES.get(module)
    return Source(text.encode(), module == "engine") if text else None


def test_name_is_missing_when_a_thousand_modules_import_every_name_of_the_next() -> None:
    """A wheel may chain more modules than Python nests calls."""
    files = {f"llm/m{number}.py": f"from llm.m{number + 1} import *\n".encode() for number in range(1000)}
    api = Api(exports({"llm/__init__.py": b"from llm.m0 import *\n", **files, "llm/m1000.py": b"last = 1\n"}))
    assert api.missing("llm.last") is None
    assert api.missing("llm.absent") == "llm.absent"


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("LLM", {"model", "dtype", "log", "extension", "seed"}),
        ("Old", {"model", "dtype", "log", "extension", "seed"}),
        ("llm.Record", {"n"}),
        ("llm.Subrecord", {"n", "m"}),
        ("llm.Child", {"seed", "model", "extension"}),
        ("llm.plain", {"b", "c"}),
        ("llm.star", {"b", "c"}),
        ("llm.pops", {"b", "c", "d"}),
    ],
)
def test_a_signature_that_shows_refuses_other_keywords(name: str, accepted: set[str]) -> None:
    signatures = Signatures(engine_source)
    assert not any(signatures.refuses(f"engine.{name}", each) for each in accepted)
    assert signatures.refuses(f"engine.{name}", "other")


@pytest.mark.parametrize(
    "name",
    ["Changed", "Swallows", "Passes", "Sometimes", "Outside", "Meta", "Model", "New", "local", "twice", "both", "no"],
)
def test_a_signature_that_does_not_show_refuses_nothing(name: str) -> None:
    assert not Signatures(engine_source).refuses(f"engine.llm.{name}", "other")
    assert not Signatures(engine_source).refuses(f"engine.{name}", "other")


def test_names_that_lead_to_each_other_end() -> None:
    loops = {"a": "from b import x\nclass C(C): pass\ndef f(**kwargs): f(**kwargs)", "b": "from a import x"}
    signatures = Signatures(lambda module: Source(loops[module].encode(), False) if module in loops else None)
    assert not any(signatures.refuses(name, "other") for name in ("a.x", "b.x", "a.C", "a.f", "c.x"))


PARAMETERS = st.sampled_from(["a", "a, b", "a, /, b", "*, a", "a, *, b", "a=1, **kwargs", "*a, b"])


@given(PARAMETERS, PARAMETERS, st.booleans(), st.sampled_from("abc"))
def test_what_a_signature_refuses_raises_type_error(outer: str, inner: str, forwards: bool, keyword: str) -> None:
    call = "inner(**kwargs)" if forwards and "kwargs" in outer else "None"
    source = f"def inner({inner}): ...\ndef outer({outer}):\n    {call}\n"
    refused = Signatures(lambda module: Source(source.encode(), False)).refuses("m.outer", keyword)
    space: dict[str, Any] = {}
    exec(source, space)
    if refused:
        with pytest.raises(TypeError, match=r"unexpected keyword|positional-only"):
            space["outer"](**{keyword: 1})


# Requirements.

SOURCES = {
    "user/__init__.py": b"",
    "user/rollout/__init__.py": b"if version > 1:\n    from user.rollout import old\nelse:\n    from . import server",
    "user/rollout/old.py": b"from engine import Old",
    "user/rollout/server.py": b"from user.common import x\nfrom engine import Server\ndef f():\n    import user.patch",
    "user/common.py": b"from engine import Common\ndef f():\n    from engine import Late",
    "user/patch.py": b"from engine import Patched",
    "user/unrelated.py": b"from engine import Unrelated",
}


def requirements(files: Mapping[str, bytes], starts: Mapping[str, Sequence[str]]) -> tuple[RequiredName, ...]:
    tops = tops_of(files, starts)
    used = [use for path, source in files.items() for use in uses(path, source, tops, called(path, starts))]
    return required(files, used, starts)


def test_requirements_are_those_of_the_files_that_run() -> None:
    found = requirements(SOURCES, {"engine": ("user.rollout.server",)})
    assert [(each.name, each.path, each.certain) for each in found] == [
        ("engine.Common", "user/common.py", True),
        ("engine.Late", "user/common.py", False),
        ("engine.Patched", "user/patch.py", False),
        ("engine.Server", "user/rollout/server.py", True),
    ]
    assert found[0] == RequiredName("engine.Common", 1, "user/common.py", 1, True)


def test_a_start_may_name_a_function_that_is_called() -> None:
    found = requirements(SOURCES, {"engine": ("user.common:f",)})
    assert [(each.name, each.certain) for each in found] == [("engine.Common", True), ("engine.Late", True)]


def test_a_module_that_only_a_command_imports_is_not_certain() -> None:
    found = requirements(SOURCES, {"engine": ("?user.rollout.server", "user.common")})
    assert [(name.name, name.certain) for name in found] == [
        ("engine.Common", True),
        ("engine.Late", False),
        ("engine.Patched", False),
        ("engine.Server", False),
    ]
    called_by_command = requirements(SOURCES, {"engine": ("?user.common:f",)})
    assert [(name.name, name.certain) for name in called_by_command] == [
        ("engine.Common", False),
        ("engine.Late", False),
    ]


def test_a_module_that_only_guarded_imports_lead_to_is_no_start() -> None:
    assert {each.name for each in requirements(SOURCES, {"engine": ("user.rollout.*",)})} == set()
    assert "engine.Unrelated" in {each.name for each in requirements(SOURCES, {"engine": ("user.*",)})}


# Missing names, compared with the import system.


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let this process import what lies in the folder, and forget it afterwards."""
    known = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - known:
            del sys.modules[name]


BODIES = st.lists(
    st.sampled_from(
        ["a = 1", "class b: pass", "from .a import *", "from . import a", "from .b import a as c", "d = 2"]
    ),
    max_size=2,
)


@given(st.fixed_dictionaries({}, optional={f"{name}.py": BODIES for name in ("__init__", "a", "b", "c")}), st.data())
def test_an_import_statement_fails_where_a_name_is_missing(
    tmp_path_factory: pytest.TempPathFactory, bodies: dict[str, list[str]], data: st.DataObject
) -> None:
    package = f"package{next(_NUMBERS)}"
    folder = tmp_path_factory.mktemp("site")
    bodies.setdefault("__init__.py", [])
    files = {f"{package}/{name}": "\n".join(lines).encode() for name, lines in bodies.items()}
    for path, source in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(source)
    module_of, name = data.draw(st.sampled_from(["", ".a", ".b"])), data.draw(st.sampled_from("abcde"))
    api = Api(exports(files))
    said = api.missing(f"{package}{module_of}.{name}", 2 if module_of else 1)
    with importable(folder):
        importlib.invalidate_caches()
        try:
            exec(f"from {package}{module_of} import {name}", {})
            missing = False
        except ImportError:
            missing = True
    if said is not None:
        assert missing
        assert said in {f"{package}{module_of}", f"{package}{module_of}.{name}"}
    elif missing:  # the import statements of the package itself fail, or an object stands where a module should
        assert any(b"import" in source for source in files.values()) or module_of[1:] in api.modules[package].names


@pytest.mark.parametrize(
    "source",
    [
        Path(typing.__file__).read_text(),
        Path(sys.modules[walk.__module__].__file__ or "").read_text(),
        "match x:\n    case {'a': [1, *_], **rest} | P(a=None): global y, z\n",
        "{**a, 'b': 1}\nasync def f(*, a: int = 1, **b: str) -> None:\n    async for i in [k async for k in j]: 1\n",
    ],
    ids=["typing", "exports", "match", "async"],
)
def test_a_tree_is_walked_in_the_order_of_the_standard_library(source: str) -> None:
    tree = ast.parse(source)
    empty = (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop, ast.alias)
    assert list(map(id, walk(tree))) == [id(node) for node in ast.walk(tree) if not isinstance(node, empty)]
