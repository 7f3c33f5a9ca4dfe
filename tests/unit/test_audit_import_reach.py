"""Imports that fail because of another package, from what users import to the failing statement."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from imagegen.audit.api.import_time import ImportTime, compiled_time, import_time
from imagegen.audit.api.source import imported_tops
from imagegen.audit.import_reach import Share, check, failures, top_modules
from imagegen.audit.model import File, Package, Severity, Subject

HUB = {
    "hub/__init__.py": "from .new import New\n__version__ = '1.0'\n",
    "hub/new.py": "class New: ...\n",
    "hub/extra.py": "from low import gone\n",
}


class Sources:
    """The sources of packages, by package and path."""

    def __init__(self, sources: Mapping[str, Mapping[str, str]]) -> None:
        self._sources = sources

    def read(self, package: Package, path: str) -> ImportTime | None:
        return import_time(path, self._sources[package.name][path].encode())

    def importing(self, package: Package, tops: Collection[str]) -> list[str]:
        sources = self._sources.get(package.name, {}).items()
        return [path for path, source in sources if not imported_tops(source.encode()).isdisjoint(tops)]

    unread: frozenset[str] = frozenset()

    def close(self) -> None: ...


def subject(sources: Mapping[str, Mapping[str, str]], version: str = "1.0", **fields: tuple[str, ...]) -> Subject:
    packages = tuple(
        Package(name, version, dict.fromkeys(files, File(0)), **(fields if name == "app" else {}))  # type: ignore[arg-type]
        for name, files in sources.items()
    )
    return Subject("x", packages, python="3.12", modules=Sources(sources))


def failing(sources: Mapping[str, Mapping[str, str]], version: str = "1.0") -> list[tuple[str, int, str]]:
    examined = subject(sources, version)
    assert examined.modules
    return [
        (failure.path, failure.line, failure.name)
        for failure in failures(examined.packages, examined.python, examined.modules)
        if failure.share is None
    ]


def test_a_name_that_another_package_lacks_is_an_error_with_its_reach() -> None:
    app = {"app/__init__.py": "from . import login\n", "app/login.py": "import hub\nfrom hub import Old\n"}
    sources = {"app": app, "hub": HUB}
    examined = subject(sources)
    (finding,) = check(examined)
    assert (finding.severity, finding.id, finding.package, finding.path) == (
        Severity.ERROR,
        "api-import",
        "app 1.0",
        "app/login.py",
    )
    (failure,) = failures(examined.packages, examined.python, Sources(sources))
    assert (failure.line, failure.name, failure.reach) == (2, "hub.Old", ("app", "app.login"))


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("from hub import New\nimport hub.new\nfrom hub.new import New\n", []),
        ("import hub.gone\n", [1]),
        ("from hub.new import Old\n", [1]),
        ("import hub\nhub.Old\n", [2]),
        ("import hub\nhub.__file__, hub.new\n", []),
        ("from hub import extra\n", []),
        ("import absent\nfrom absent import x\n", []),
        ("from app import gone\n", []),
        (
            "import hub\nif Version(hub.__version__) < Version('2'): import hub.new\nelse: import hub.gone\n",
            [],
        ),
        ("import hub\nif Version(hub.__version__) < Version('2'):\n    raise ImportError\n", [3]),
        ("import hub\nif Version(hub.__version__) > Version('2'):\n    raise ImportError\n", []),
        ("import sys\nif sys.version_info >= (3, 12):\n    from hub import Old\n", [3]),
    ],
)
def test_each_statement_is_compared_with_the_files_that_are_there(source: str, lines: list[int]) -> None:
    found = failing({"app": {"app/__init__.py": source}, "hub": HUB})
    assert [line for path, line, _ in found if path == "app/__init__.py"] == lines


def test_a_module_of_another_package_that_an_import_reaches_is_followed() -> None:
    low = {"low/__init__.py": ""}
    app = {"app/__init__.py": "from hub import extra\n"}
    assert failing({"hub": HUB, "low": low}) == []
    assert failing({"app": app, "hub": HUB, "low": low}) == [("hub/extra.py", 1, "low.gone")]


def test_a_name_of_a_lazy_package_leads_to_its_module() -> None:
    hub = {
        "hub/__init__.py": "if TYPE_CHECKING:\n    from .big import Big\ndef __getattr__(name): return load(name)\n",
        "hub/big.py": "from low import gone\n",
    }
    sources = {"app": {"app/__init__.py": "from hub import Big\n"}, "hub": hub, "low": {"low.py": ""}}
    assert [path for path, _, _ in failing(sources)] == ["hub/big.py"]


@pytest.mark.parametrize(
    ("parts", "severity", "share"),
    [
        ({"app/a.py": "from hub import Old\n"}, Severity.WARNING, Share(1, 1, 1, 2)),
        (
            {"app/a.py": "from hub import Old\n", **{f"app/b{number}.py": "import hub\n" for number in range(4)}},
            Severity.INFO,
            Share(5, 1, 1, 6),
        ),
        (  # b loads a, and c lies in the package b
            {
                "app/a.py": "from hub import Old\n",
                "app/b/__init__.py": "from .. import a\n",
                "app/b/c.py": "import hub\n",
            },
            Severity.WARNING,
            Share(2, 2, 3, 4),
        ),
        ({"app/tests/a.py": "from hub import Old\n"}, None, None),
        ({"app/_a.py": "from hub import Old\n"}, Severity.WARNING, Share(1, 1, 0, 1)),
    ],
)
def test_what_no_import_of_a_package_reaches_is_a_part_of_it(
    parts: dict[str, str], severity: Severity | None, share: Share | None
) -> None:
    sources = {"app": {"app/__init__.py": "", **parts}, "hub": HUB}
    examined = subject(sources)
    assert [finding.severity for finding in check(examined)] == ([severity] if severity else [])
    found = failures(examined.packages, examined.python, Sources(sources))
    assert [failure.share for failure in found] == ([share] if share else [])


def test_parts_that_are_for_another_release_are_not_followed() -> None:
    old = "import hub\nif hub.__version__ < Version('1'):\n    from .old import low\n    from . import older\n"
    app = {
        "app/__init__.py": "",
        "app/choose.py": old,
        "app/old/__init__.py": "",
        "app/old/low.py": "from hub import Old\n",
        "app/older.py": "from hub import Old\n",
    }
    assert list(check(subject({"app": app, "hub": HUB}))) == []


def test_a_command_is_where_the_reach_of_a_part_begins() -> None:
    app = {"app/__init__.py": "", "app/serve.py": "from . import low\n", "app/low.py": "from hub import Old\n"}
    sources = {"app": app, "hub": HUB}
    examined = subject(sources, entry_points=("app.serve",))
    (failure,) = failures(examined.packages, examined.python, Sources(sources))
    assert failure.reach == ("app.serve", "app.low")


def test_compiled_modules_and_namespaces_may_define_any_name() -> None:
    hub = {"hub/__init__.py": "", "hub/core.cpython-312-x86_64-linux-gnu.so": "", "space/a/one.py": ""}
    app = {"app/__init__.py": "from hub.core import fast\nfrom space import other\nimport space.a.one\n"}
    assert failing({"app": app, "hub": hub}) == []


@pytest.mark.parametrize(
    ("name", "paths", "modules"),
    [
        ("scikit-app", ["scikit_app/__init__.py", "tests/__init__.py"], ["scikit_app"]),
        ("pyyaml", ["yaml/__init__.py", "_yaml/__init__.py"], ["yaml"]),
        ("six", ["six.py", "six-1.0.dist-info/METADATA"], ["six"]),
        ("nothing", ["../../../bin/x"], []),
    ],
)
def test_users_import_the_modules_named_after_a_package_or_all_public_ones(
    name: str, paths: list[str], modules: list[str]
) -> None:
    assert top_modules(Package(name, "1.0", dict.fromkeys(paths, File(0)))) == modules


@pytest.mark.parametrize(
    ("init", "lines"),
    [
        ("def __getattr__(name): return load(name)\n", [2]),
        ("def __getattr__(name): return load(name)\n__path__ = find()\n", []),
        ("def __getattr__(name): return load(name)\nsys.modules['hub.gone'] = new\n", []),
        ("from . import loader\n", []),
    ],
)
def test_only_code_that_creates_modules_answers_an_import_of_a_missing_module(init: str, lines: list[int]) -> None:
    hub = {"hub/__init__.py": init, "hub/loader.py": "import sys\nsys.meta_path.append(Finder())\n"}
    app = {"app/__init__.py": "import hub\nimport hub.gone\n"}
    assert [line for _, line, _ in failing({"app": app, "hub": hub})] == lines


@pytest.mark.parametrize(
    ("init", "lines"),
    [
        ("for old in MOVED:\n    sys.modules[f'{__name__}.{old}'] = new\n", [2, 3]),
        ("sys.modules[__name__] = Lazy()\nNever = 1\n", [1, 2, 3]),
    ],
)
def test_modules_below_a_package_that_creates_some_may_exist(init: str, lines: list[int]) -> None:
    hub = {"hub/__init__.py": init, "hub/low/__init__.py": "", "hub/one.py": ""}
    app = {"app/__init__.py": "import hub.low.gone\nfrom hub.low import Gone\nfrom hub.one import gone\n"}
    assert [line for _, line, _ in failing({"app": app, "hub": hub})] == lines


def test_a_class_of_lazy_modules_answers_names_with_its_endings() -> None:
    lazy = "class _LazyModule(ModuleType):\n    def __getattr__(self, name):\n        if name.endswith('Fast'): ...\n"
    hub = {
        "hub/__init__.py": "from .utils import _LazyModule\nsys.modules[__name__] = _LazyModule(_structure)\n",
        "hub/utils/__init__.py": "from .lazy import _LazyModule\n",
        "hub/utils/lazy.py": f"import sys\n\n\n{lazy}",
    }
    app = {"app/__init__.py": "from hub import TokenizerFast\nfrom hub import Tokenizer\n"}
    assert [line for _, line, _ in failing({"app": app, "hub": hub})] == [2]


def test_a_module_that_its_package_imports_does_not_hide_what_the_module_lacks() -> None:
    hub = {"hub/__init__.py": "from . import json as json\n", "hub/json.py": "class Decoder: ...\n"}
    app = {"app/__init__.py": "from hub import json\nclass A(json.Encoder): ...\nclass B(json.Decoder): ...\n"}
    assert failing({"app": app, "hub": hub}) == [("app/__init__.py", 2, "hub.json.Encoder")]
    star = {"app/__init__.py": "from hub import *\n", "top/__init__.py": ""}
    top = {"top/__init__.py": "from app import json\n"}
    assert failing({"app": star, "hub": hub, "top": top}) == []


@pytest.mark.parametrize(
    ("source", "python", "names"),
    [
        ("import distutils.version\n", "3.12", ["distutils"]),
        ("import distutils.version\n", "3.11", []),
        ("try:\n    import cgi\nexcept ImportError:\n    cgi = None\n", "3.13", []),
        ("import sys\nif sys.version_info < (3, 13):\n    import cgi\n", "3.13", []),
        ("import collections\nclass A(collections.Mapping): ...\n", "3.12", ["collections.Mapping"]),
        ("from collections import Mapping, OrderedDict\nimport collections.abc\n", "3.12", ["collections.Mapping"]),
        ("def f():\n    import imp\n", "3.12", []),
    ],
)
def test_modules_and_names_that_this_python_lacks_are_missing(source: str, python: str, names: list[str]) -> None:
    examined = subject({"app": {"app/__init__.py": source}})
    found = failures(examined.packages, python, Sources({"app": {"app/__init__.py": source}}))
    assert [(failure.name, failure.provider) for failure in found] == [(name, None) for name in names]


def test_a_package_that_provides_a_module_of_the_standard_library_counts() -> None:
    app = {"app/__init__.py": "import distutils\nimport imp\n"}
    assert failing({"app": app, "setuptools": {}, "imp": {"imp.py": ""}}) == []


def test_a_module_that_a_package_does_not_have_any_more_is_missing() -> None:
    app = {"app/__init__.py": "import pkg_resources\n"}
    setuptools = {"setuptools/__init__.py": ""}
    assert failing({"app": app, "setuptools": setuptools}, "82.0") == [("app/__init__.py", 1, "pkg_resources")]
    assert failing({"app": app, "setuptools": setuptools}, "81.0") == []
    below = subject(
        {"app": {"app/__init__.py": "", "app/low.py": "import pkg_resources\n"}, "setuptools": setuptools}, "82.0"
    )
    assert [finding.path for finding in check(below)] == ["app/low.py"]


def test_users_import_the_outermost_packages_below_a_namespace() -> None:
    paths = ["google/core/__init__.py", "google/core/gapic/__init__.py", "google/_x/__init__.py", "google/rpc/a.py"]
    assert top_modules(Package("core", "1.0", dict.fromkeys(paths, File(0)))) == ["google.core"]


class Binaries(Sources):
    def read(self, package: Package, path: str) -> ImportTime | None:
        return compiled_time(OF_NUMPY_1) if path.endswith(".so") else super().read(package, path)


OF_NUMPY_1 = b"\x7fELF numpy.core.multiarray\0module compiled against ABI version 0x%x\0"


@pytest.mark.parametrize(("numpy", "packages"), [("1.26.4", []), ("2.0.0", ["app 1.0"])])
def test_extension_modules_of_numpy_1_are_one_error_with_numpy_2(numpy: str, packages: list[str]) -> None:
    sources = {"app/__init__.py": "from . import one, two\n", "app/one.abi3.so": "", "app/two.abi3.so": ""}
    app = Package("app", "1.0", dict.fromkeys(sources, File(0)))
    found = check(Subject("x", (app, Package("numpy", numpy, {})), python="3.12", modules=Binaries({"app": sources})))
    assert [(finding.package, len(finding.details)) for finding in found] == [(package, 2) for package in packages]


def test_extension_modules_of_numpy_2_or_without_its_arrays_refuse_nothing() -> None:
    assert compiled_time(OF_NUMPY_1 + b"numpy._core").refusals == ()
    assert compiled_time(b"numpy.core.multiarray").refusals == ()  # pybind11's headers load it when it is needed


@pytest.mark.parametrize(
    ("table", "lines"),
    [("hub>=1,<2", []), ("hub>=2", [4]), ("hub<1", [4]), ("hub", []), ("other>=1", [])],
)
def test_requirements_that_a_loop_takes_from_a_table_are_compared(table: str, lines: list[int]) -> None:
    check = "from .table import deps\nkeys = ['hub', 'absent']\nfor key in keys:\n    require_version_core(deps[key])\n"
    tables = f"deps = {{'hub': '{table}', 'absent': 'absent>=3', 'other': 'other~=1.0'}}\n"
    app = {"app/__init__.py": check, "app/table.py": tables}
    assert [line for _, line, _ in failing({"app": app, "hub": HUB, "low": {"low.py": ""}})] == lines


def test_a_name_that_a_module_lists_in_all_exists() -> None:
    hub = {"hub/__init__.py": "__all__ = ['FloatTensor']\n__all__ += ['Half']\n"}
    app = {"app/__init__.py": "import hub\nhub.FloatTensor, hub.Half\nhub.Old\n"}
    assert failing({"app": app, "hub": hub}) == [("app/__init__.py", 3, "hub.Old")]


def test_the_modules_of_two_packages_with_the_same_files_are_those_of_the_first() -> None:
    first = {"hub/__init__.py": "from .new import New\n", "hub/new.py": "New = 1\n"}
    second = {"hub/__init__.py": "from .new import Newer\n", "hub/new.py": "Newer = 1\n"}
    assert failing({"first": first, "second": second}) == []
