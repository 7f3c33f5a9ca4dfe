"""Imports that fail because of another package, from what users import to the failing statement."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from imagegen.audit.api.import_time import ImportTime, import_time
from imagegen.audit.import_reach import check, failures, top_modules
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


def test_what_only_a_command_reaches_is_a_warning() -> None:
    app = {"app/__init__.py": "", "app/serve.py": "from hub import Old\n"}
    assert list(check(subject({"app": app, "hub": HUB}))) == []
    (finding,) = check(subject({"app": app, "hub": HUB}, entry_points=("app.serve",)))
    assert (finding.severity, finding.path) == (Severity.WARNING, "app/serve.py")


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
