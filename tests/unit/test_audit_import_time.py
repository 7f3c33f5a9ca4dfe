"""What modules need while they are imported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagegen.audit.api.conditions import PYTHON, VersionTest
from imagegen.audit.api.import_time import ImportTime, import_time
from imagegen.audit.module_facts import packed_modules, read_modules


def read(source: str, path: str = "app/part.py") -> ImportTime:
    return import_time(path, source.encode())


def names(source: str) -> set[str]:
    return {name.name for name in read(source).names}


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        ("import hub", {"hub"}),
        ("import hub.low as h\nh.Old", {"hub.low", "hub.low.Old"}),
        ("from hub import Old", {"hub.Old"}),
        ("from hub import *", {"hub"}),
        ("from .side import x\nfrom .. import top", {"app.side.x"}),
        (
            "import hub\nclass A(hub.Old):\n    limit = hub.LIMIT\n    def f(self): hub.never",
            {"hub", "hub.Old", "hub.LIMIT"},
        ),
        (
            "import hub\n@hub.register(1)\ndef f(x=hub.DEFAULT):\n    return hub.never",
            {"hub", "hub.register", "hub.DEFAULT"},
        ),
        ("import hub\nf = lambda: hub.never\ng = hub.a if f else hub.b", {"hub"}),
        ("import hub\nhub = 1\nhub.Old", {"hub"}),
        ("import os, sys\nos.path", set()),
        ("try:\n    from hub import Old\nexcept ImportError:\n    Old = None", set()),
        ("try:\n    from hub import Old\nexcept ImportError:\n    raise RuntimeError('x')", {"hub.Old"}),
        ("try:\n    from hub import Old\nexcept ValueError:\n    pass", {"hub.Old"}),
        ("with suppress(ImportError):\n    from hub import Old", set()),
        ("with lock():\n    from hub import Old", {"hub.Old"}),
        ("if TYPE_CHECKING:\n    from hub import Old\nelse:\n    import hub", {"hub"}),
        ("import sys\nif sys.platform == 'win32':\n    import hub\nelse:\n    import low", {"low"}),
        ("import os\nif os.name != 'nt':\n    import hub", {"hub"}),
        ("if is_fast():\n    from hub import Old", set()),
        ("if not is_hub_available():\n    raise ImportError\nfrom hub import Old", {"hub.Old"}),
        ("if is_slow():\n    raise ImportError\nfrom hub import Old", {"hub.Old"}),
        ("try:\n    if slow: raise Slow\n    from hub import Old\nexcept Slow: pass", set()),
        ("try:\n    if slow: raise Slow\nexcept Slow: pass\nelse:\n    from hub import Old", set()),
        ("try:\n    v = version('hub')\nexcept Absent: pass\nelse:\n    from hub import Old", set()),
        ("try:\n    v = version('hub')\n    from hub import Old\nexcept Absent: pass", set()),
        ("try:\n    import hub\nexcept Slow: pass\nelse:\n    from hub import Old", {"hub", "hub.Old"}),
        ("while slow:\n    break\nfrom hub import Old", {"hub.Old"}),
        ("for i in range(3):\n    from hub import Old", set()),
        ('def f():\n    """text\nimport hub\n"""\nimport low', {"low"}),
        ("def f(a,\n      b):\n    import hub\nimport low", {"low"}),
        ("async def f():\n    import hub\n\n# a comment\nimport low", {"low"}),
    ],
)
def test_only_statements_that_the_import_must_run_count(source: str, needed: set[str]) -> None:
    assert names(source) == needed


def test_a_condition_that_leaves_a_try_is_one_of_its_else() -> None:
    source = "try:\n    if not is_hub_version('>=', '2'): raise Absent\nexcept Absent: pass\nelse:\n    import low\n"
    module = read(source)
    assert [(name.name, name.tests) for name in module.names] == [("low", (VersionTest("hub", ">=", "2"),))]
    assert module.refusals == ()


@pytest.mark.parametrize(
    ("source", "annotated"),
    [
        ("def f(x: hub.A, *, y: list[hub.B] = None) -> hub.C: pass", {"hub.A", "hub.B", "hub.C"}),
        ("class A:\n    def f(self, *x: hub.A, **y: hub.B): pass", {"hub.A", "hub.B"}),
        ("x: hub.A = 1\nclass A:\n    y: hub.B", {"hub.A", "hub.B"}),
        ("def f(x: 'hub.A') -> 'hub.B': pass", set()),
        ("def f():\n    x: hub.A = 1", set()),
    ],
)
def test_annotations_are_evaluated_before_python_3_14(source: str, annotated: set[str]) -> None:
    found = read(f"import hub\n{source}").names
    assert {name.name for name in found} == {"hub", *annotated}
    assert {name.tests for name in found if name.name != "hub"} <= {(VersionTest(PYTHON, "<", "3.14"),)}
    assert names(f"from __future__ import annotations\nimport hub\n{source}") == {"hub"}


@pytest.mark.parametrize(
    ("condition", "test"),
    [
        ("Version(hub.__version__) >= Version('2.0')", ("hub", ">=", "2.0")),
        ("version.parse(hub.__version__) < version.parse('2.0')", ("hub", "<", "2.0")),
        ("parse(importlib.metadata.version('hub-lib')) > parse('2')", ("hub-lib", ">", "2")),
        ("Version('2') <= Version(hub.__version__)", ("hub", ">=", "2")),
        ("not Version(hub.__version__) >= Version('2')", ("hub", "<", "2")),
        ("sys.version_info >= (3, 12)", (PYTHON, ">=", "3.12")),
        ("sys.version_info[:2] < (3, 12)", (PYTHON, "<", "3.12")),
        ("_NEW", ("hub", ">=", "3")),
        ("parse(parse(hub.__version__).base_version) >= parse('2')", ("hub", ">=", "2")),
        ("parse(hub.__version__).release >= (2, 1)", ("hub", ">=", "2.1")),
        ("hub.__version__[0] == '2'", ("hub", "major", "2")),
        ("_FIRST != '2'", ("hub", "not major", "2")),
        ("hub.core.__version__[:1] == '2'", ("hub.core", "major", "2")),
        ("is_hub_version('<', '2')", ("hub", "<", "2")),
        ("is_low_level_version('>=', '2.0.dev0')", ("low-level", ">=", "2.0.dev0")),
        ("compare_versions('hub', '==', '2')", ("hub", "==", "2")),
        ("is_hub_greater_or_equal('2.1')", ("hub", ">=", "2.1")),
    ],
)
def test_a_comparison_of_versions_is_kept_as_data(condition: str, test: tuple[str, str, str]) -> None:
    head = "import sys, hub.core\n_FIRST = hub.__version__[0]\n_VERSION = Version(hub.__version__)\n"
    head += "_NEW = _VERSION >= Version('3')\n"
    found = read(f"{head}if {condition}:\n    from low import a\nelse:\n    from low import b\n")
    tests = {name.name: name.tests for name in found.names}
    assert tests["low.a"] == (VersionTest(*test),)
    assert tests["low.b"] == (VersionTest(*test).opposite(),)


@pytest.mark.parametrize(
    "source",
    [
        "import hub\nif Version(hub.__version__) < Version('2'):\n    raise ImportError('old')",
        "import hub\nassert Version(hub.__version__) >= Version('2'), 'old'",
        "from hub.utils import require_version\nrequire_version('hub>=2')",
        "import hub\nif Version(hub.__version__) >= Version('2'):\n    pass\nelse:\n    raise ImportError('old')",
    ],
)
def test_a_raise_behind_a_comparison_of_versions_is_a_refusal(source: str) -> None:
    (refusal,) = read(source).refusals
    assert refusal.tests == (VersionTest("hub", "<", "2"),)


def test_names_that_only_type_checkers_import_are_those_of_a_lazy_package() -> None:
    typed = "if TYPE_CHECKING:\n    from .low import Thing\n"
    assert read(f"{typed}def __getattr__(name): ...\n", "app/__init__.py").lazy == {"Thing": "app.low"}
    assert read(typed, "app/__init__.py").lazy == {}


def test_names_attached_by_a_lazy_loader_are_defined() -> None:
    source = (
        "_ATTRS = {'low': ['Thing']}\n__getattr__, __dir__ = _attach(__name__, submodules=[], submod_attrs=_ATTRS)\n"
    )
    found = read(source, "app/__init__.py")
    assert found.lazy == {"Thing": "app.low"}
    assert not found.defined.open
    assert "Thing" in found.defined.names


def test_a_module_that_cannot_be_parsed_may_define_any_name() -> None:
    assert read("def f(:\n") == ImportTime()


LINES = st.sampled_from(
    [
        "import hub",
        "from hub import Old",
        "if Version(hub.__version__) < Version('2'):",
        "try:",
        "except ImportError:",
        "    import low",
        "    raise ImportError",
        "def f(a, b=(1,",
        "        2)):",
        '    """text',
        '"""',
        "class A(hub.Old):",
        "else:",
        "X = Y",
        "Y = X",
        "",
    ]
)


@given(st.lists(LINES, max_size=12), st.binary(max_size=20))
def test_any_source_is_read_and_kept_as_bytes(lines: list[str], tail: bytes) -> None:
    module = import_time("app/__init__.py", "\n".join(lines).encode() + tail)
    assert read_modules(packed_modules({"app/__init__.py": module})) == {"app/__init__.py": module}


def test_a_getattr_whose_conditions_raise_or_compare_texts_answers_only_those() -> None:
    source = (
        "for name in ['float96', 'float128']:\n    globals()[name] = getattr(core, name)\n"
        "if new:\n    TABLE = {'str', 'bytes'}\n"
        "    def __getattr__(attr):\n"
        "        if attr == 'linalg':\n            return 1\n"
        "        if attr in TABLE:\n            warn(attr)\n"
        "        if attr in computed:\n            raise AttributeError\n"
        "        raise AttributeError\n"
    )
    defined = read(source, "app/__init__.py").defined
    assert not defined.open
    assert {"float96", "float128", "str", "bytes", "linalg"} <= defined.names
    assert read(
        source.replace("raise AttributeError\n        raise", "return 1\n        raise"), "app/__init__.py"
    ).defined.open
    assert read(source.replace("['float96'", "[*more, 'float96'"), "app/__init__.py").defined.open
