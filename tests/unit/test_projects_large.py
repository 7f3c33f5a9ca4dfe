"""Files of a project that are long, or that grow when they are read: read in about linear time, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from imagegen.core.errors import ProjectFileError
from imagegen.projects import conda, dockerfile, locks, requirements
from imagegen.projects.model import DeclaringFile, MarkerTarget, PackagePin, Recovered
from tests.support.errors import raises
from tests.support.timing import within

LINUX = MarkerTarget("3.12.14")
FROM = "FROM scratch\n"
UV_LOCK = "version = 1\nrequires-python = '>=3.10'\n"
MANY = "Matrices, rules, locks"
Reader = Callable[[Path], DeclaringFile]
READERS: dict[str, Reader] = {
    "Dockerfile": lambda path: dockerfile.read(path, {}),
    "environment.yml": lambda path: conda.read(path, path.parent),
    "pyproject.toml": locks.read_pyproject,
    "requirements.txt": requirements.read,
    "uv.lock": locks.read_uv_lock,
}


def recover(folder: Path, name: str, text: str) -> Recovered:
    (folder / name).write_text(text)
    return READERS[name](folder / name).recover(LINUX)


def many(form: str, count: int) -> str:
    return "".join(form.format(number, number + 1) for number in range(count))


LONG: dict[str, tuple[str, str]] = {
    "lines of a command": ("Dockerfile", FROM + "RUN pip install a" + " \\\n && echo aaa" * 8000 + "\n"),
    "instructions": ("Dockerfile", FROM + "RUN true\n" * 30_000),
    "stages": ("Dockerfile", "FROM scratch AS s0\n" + many("FROM s{} AS s{}\n", 10_000)),
    "stages of one name": ("Dockerfile", "FROM scratch AS s\n" + "FROM s AS s\n" * 10_000),
    "relative directories": ("Dockerfile", FROM + "WORKDIR a\n" * 20_000),
    "commands that change the directory": ("Dockerfile", FROM + "RUN cd a" + " && cd a" * 15_000 + "\n"),
    "directories of the loader": (
        "Dockerfile",
        FROM + many("RUN echo /a{} > /etc/ld.so.conf\n", 3000) + many("COPY Dockerfile /b{}\n", 3000),
    ),
    "copies of one file of directories": (
        "Dockerfile",
        FROM + many("COPY Dockerfile /etc/ld.so.conf.d/{}.conf\n", 1000),
    ),
    "words of a requirement": ("requirements.txt", "numpy" + " " * 60_000 + "# x" * 60_000 + "\n"),
    "clauses": ("requirements.txt", many("numpy!=1.0.{}\n", 450)),
    "clauses of constraints": ("requirements.txt", "numpy\n-c c.txt\n"),
    "dependencies": ("pyproject.toml", "[project]\nname='x'\ndependencies=[" + many("'a{}',", 20_000) + "]\n"),
    "packages of a lock": (
        "uv.lock",
        UV_LOCK + many("[[package]]\nname='x{0}'\nversion='1'\nsource={{virtual='{0}'}}\n", 4000),
    ),
    "packages of an environment": ("environment.yml", "dependencies:\n" + many("- numpy!=1.0.{}\n", 450)),
}


@pytest.mark.fault(
    MANY, "files of a project with thousands of lines, stages, packages or clauses", "read within seconds"
)
@pytest.mark.parametrize("case", LONG)
def test_long_files_are_read_in_about_linear_time(case: str, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text(many("numpy!=1.0.{}\n", 450))
    with within(4):
        assert isinstance(recover(tmp_path, *LONG[case]), Recovered)


@pytest.mark.fault(MANY, "files of a project that are too long, or grow when they are read", "refused, with the line")
@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("Dockerfile", FROM + "ENV A=aaaaaaaaaaaaaaaa\n" + "ENV A=$A$A\n" * 30, 18),
        ("Dockerfile", "ARG A=aaaaaaaaaaaaaaaa\n" + "ARG A=${A}${A:-b}\n" * 30 + FROM, 17),
        ("Dockerfile", FROM + f"ENV A={'a' * 1000}\n" + "ENV B=$A\n" * 2000, 1051),
        ("Dockerfile", FROM + f"ENV A={'a' * 1000}\nRUN echo {'$A' * 2000}\n", 3),
        ("Dockerfile", FROM + f"ENV A={'a' * 1000}\nLABEL b={'${A:+' + 'b' * 1000 + '}'}{'$A' * 2000}\n", 3),
        ("Dockerfile", FROM + "RUN true\nRUN a" + " \\\n && a" * 30_000 + "\n", 3),
        ("Dockerfile", FROM + f"RUN <<E\n{'a' * 200_000}\nE\n", 3),
        ("Dockerfile", FROM + f"ENV A={'a' * 200_000}\n", 2),
        ("Dockerfile", FROM + "# a\n" * 300_000, None),
        ("environment.yml", "dependencies:\n" + "- a\n" * 300_000, None),
        ("requirements.txt", many("numpy!=1.0.{}\n", 1000), 501),
        ("requirements.txt", many("-r r{}.txt\n", 150), 100),
        ("requirements.txt", "a\n" * 100_001, 100_001),
    ],
)
def test_files_that_are_too_long_or_grow_are_refused(name: str, text: str, line: int | None, tmp_path: Path) -> None:
    for number in range(150):
        (tmp_path / f"r{number}.txt").write_text("\n")
    with within(4), pytest.raises(ProjectFileError) as caught:
        recover(tmp_path, name, text)
    assert caught.value.code in ("project-malformed", "project-unreadable")
    assert caught.value.where.line == line


@pytest.mark.fault(MANY, "requirements files that name one another hundreds of times", "each is read once")
def test_files_that_are_named_again_and_again_are_read_once(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"r{number}.txt").write_text(
            f"a{number}\n" + f"-r r{number + 1}.txt\n-c ./r{number + 1}.txt\n" * 30
        )
    (tmp_path / "r6.txt").write_text("numpy>=2\n")
    with within(4):
        found = recover(tmp_path, "requirements.txt", "-r r0.txt\n")
    assert [pin.package for pin in found.pins] == ["a0", "a1", "a2", "a3", "a4", "a5", "numpy"]


def test_a_later_command_may_name_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("numpy==2\n")
    install = "RUN pip install -r r.txt\n"
    found = recover(tmp_path, "Dockerfile", f"{FROM}{install}RUN pip install numpy==1\n{install}")
    assert [pin.specifier for pin in found.pins] == ["==2"]


def test_all_clauses_and_places_of_a_package_are_joined(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("numpy<3\nnumpy!=2.1\n")
    (pin,) = recover(tmp_path, "requirements.txt", "numpy>=1\nnumpy[x]!=2.0\nnumpy>=1\n-c c.txt\n").pins
    places = [(Path(place.file).name, place.line) for place in pin.places]
    assert pin == PackagePin("numpy", ">=1,!=2.0,<3,!=2.1", pin.places, ("x",))
    assert places == [
        ("requirements.txt", 1),
        ("requirements.txt", 2),
        ("requirements.txt", 3),
        ("c.txt", 1),
        ("c.txt", 2),
    ]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("numpy>=1\nnumpy<3\nnumpy>=3\nnumpy<1\n", "requirements.txt:3"),
        ("numpy==1\nnumpy==2\n", "requirements.txt:2"),
        ("numpy==1\n-c c.txt\n", "c.txt:2"),
    ],
)
def test_the_first_requirement_that_contradicts_those_before_is_named(text: str, where: str, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("numpy<2\nnumpy>=2\nnumpy<1\n")
    with raises("project-malformed", where=f"{tmp_path}/{where}"):
        recover(tmp_path, "requirements.txt", text)


@pytest.mark.fault(
    MANY, "COPY with hundreds of patterns, or patterns over all directories below all", "some are not read"
)
def test_few_patterns_of_copy_are_looked_for(tmp_path: Path) -> None:
    deep = tmp_path / "/".join("a" * 60)
    deep.mkdir(parents=True)
    (deep / "b").touch()
    below = "/".join(["**/a"] * 4)
    with within(4):
        found = recover(tmp_path, "Dockerfile", FROM + f"COPY {below}/b /c/\n" + "COPY **/b /d/\n" * 300)
    assert set(found.files) == {"/d"} or set(found.files) == {"/d/b"}
    assert [omission.place.line for omission in found.omissions] == [2, *range(202, 303)]
