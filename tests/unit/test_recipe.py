"""The rendered Dockerfile: its text, and that no value of a lock ever becomes an instruction or a command."""

from __future__ import annotations

import functools
import json
import re
import shlex
import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from imagegen import spec as matrix
from imagegen.core.errors import LockError, MatrixErrors
from imagegen.image import dockerfile
from imagegen.image.layers import environment
from imagegen.image.layers.image_config import image, labels
from imagegen.lock import dumps, local_tags, main_versions
from imagegen.lock.file import loads, lock_table, render_table, render_value
from imagegen.lock.model import Lock
from imagegen.oci.documents import ImageConfig
from imagegen.oci.documents import RemoteImage as RegistryImage
from imagegen.spec.model import EnvVar
from tests.support.dockerfile_parser import Instruction, assignment, instructions
from tests.support.errors import raises
from tests.support.interpreters import LOCKED
from tests.support.matrix_samples import SMALL
from tests.support.tiny_lock import HOSTILE, LINE, LOCK, TAG, C, leaves, wheel, with_leaf

WITH_ENV = SMALL.replace("    gpus:", "    env: {A: {value: v, because: b}}\n    gpus:")


def render(lock: Lock) -> str:
    return dockerfile.render(lock, TAG).dockerfile


def test_the_text(golden: Callable[[str, str], None]) -> None:
    golden(f"{LOCK.cell}.Dockerfile", render(LOCK))


def test_what_a_plain_build_cannot_fetch_comes_as_files() -> None:
    rendered = dockerfile.render(LOCK, TAG)
    assert [each.name for each in rendered.wheels] == ["uv", "antlr4-python3-runtime", "torch"]
    assert f"#   docker buildx {rendered.arguments}\n" in rendered.dockerfile
    assert f" -t {TAG}-plain " in rendered.arguments


@functools.cache
def the_runs() -> list[Instruction]:
    return [each for each in instructions(render(LOCK)) if each.name == "RUN"]


def expected(lock: Lock) -> list[Instruction]:
    """Return the expected Dockerfile of `lock`, made of the Dockerfile of LOCK and the lock's own values."""
    pins = "".join(
        f"# {main_versions.reason(each)}\n{each.name}=={each.version} --hash=sha256:{each.file.sha256}\n"
        for each in lock.wheels
    )
    install, finish = the_runs()
    script = install.documents[0]
    slots = {
        LOCK.uv.file.filename: lock.uv.file.filename,
        LOCK.uv.file.sha256: lock.uv.file.sha256,
        f"uv-{LOCK.uv.version}.data": f"uv-{lock.uv.version}.data",
        LOCK.interpreter.path: lock.interpreter.path,
    }
    # These stand in shell commands, in quotes or not: no character of theirs may mean anything to a shell.
    assert all(re.fullmatch(r"[A-Za-z0-9._+!/-]+", value) for value in slots.values())
    for old, new in slots.items():
        assert old in script
        script = script.replace(old, new)
    last = finish.documents[0].replace(LOCK.interpreter.path, lock.interpreter.path)
    return [
        Instruction("FROM", "scratch AS requirements"),
        Instruction("COPY", '<<"REQUIREMENTS" /requirements.txt', (pins,)),
        Instruction("FROM", "base"),
        replace(install, documents=(script,)),
        Instruction("COPY", "support/ /opt/imagegen/"),
        replace(finish, documents=(last,)),
        *(Instruction("ENV", f"{name}={value}") for name, value in environment(lock).items()),
        Instruction("WORKDIR", "/workspace"),
        *(Instruction("LABEL", f"{name}={value}") for name, value in labels(lock).items()),
        Instruction("ENTRYPOINT", '["/opt/imagegen/entrypoint"]'),
        Instruction("CMD", '["/bin/bash"]'),
    ]


def check(lock: Lock) -> None:
    text = render(lock)
    found = instructions(text)
    found = [
        replace(each, value="=".join(assignment(each.value))) if each.name in ("ENV", "LABEL") else each
        for each in found
    ]
    assert found == expected(lock)
    pins = found[1].documents[0].splitlines()
    assert len(pins) == 2 * len(lock.wheels), "a reason is more than a line"
    for pin in pins[1::2]:
        assert re.fullmatch(r"[a-z0-9-]+==[A-Za-z0-9.!+_-]+ --hash=sha256:[0-9a-f]{64}", pin)


PIECES = st.one_of(st.sampled_from(HOSTILE), st.text(string.printable, max_size=4), st.text(max_size=4))
ANYTHING = st.lists(PIECES, max_size=6).map("".join)


@given(because=LINE, reason=LINE, value=LINE)
@example(because="REQUIREMENTS", reason="IMAGEGEN", value="IMAGEGEN")
@example(because="ends in \\", reason="ends in \\", value="ends in \\")
@example(because="\\", reason=" \\ ", value='\\"')
@example(because="", reason="", value="")
@example(because="syntax=evil", reason="escape=`", value="$")
def test_free_texts_stay_in_comments_and_quotes(because: str, reason: str, value: str) -> None:
    torch = replace(LOCK.wheels[-1], because=because)
    lock = replace(LOCK, wheels=(*LOCK.wheels[:-1], torch), env=(EnvVar("X", value, reason),))
    assert loads(dumps(lock)) == lock, "a lock may hold it"
    check(lock)


def _version(value: str) -> Lock:
    torch = wheel("torch", value, C)
    # The file is the lock's word for a release; only then does a lock pass that holds the version.
    return replace(LOCK, wheels=(replace(torch, file=replace(torch.file, filename="torch-1.0-py3-none-any.whl")),))


FIELDS: dict[str, tuple[str, Callable[[str], Lock]]] = {
    "cell": ("tiny", lambda value: replace(LOCK, cell=value)),
    "image": ("tiny", lambda value: replace(LOCK, image=value)),
    "as_of": ("2026-11-20T00:00:00Z", lambda value: replace(LOCK, as_of=value)),
    "base": ("debian12", lambda value: replace(LOCK, base=replace(LOCK.base, name=value))),
    "interpreter": ("/usr/bin/python", lambda value: replace(LOCK, interpreter=replace(LOCKED, path=value))),
    "archive": ("debian", lambda value: replace(LOCK, base=replace(LOCK.base, archives={value: LOCK.as_of}))),
    "env name": ("X", lambda value: replace(LOCK, env=(EnvVar(value, "1", "why"),))),
    "package": ("torch", lambda value: replace(LOCK, wheels=(wheel(value, "1.0", C),))),
    "version": ("1.0", _version),
    "sha256": (C, lambda value: replace(LOCK, wheels=(wheel("torch", "1.0", value),))),
    "via": ("torch", lambda value: replace(LOCK, wheels=(wheel("torch", "1.0", C, via=(value,)),))),
    "uv's sha256": (C, lambda value: replace(LOCK, uv=wheel("uv", "1.0", value))),
    "uv's file": (
        "uv-0.13.8-py3-none-any.whl",
        lambda value: replace(LOCK, uv=replace(LOCK.uv, file=replace(LOCK.uv.file, filename=value))),
    ),
    "uv's version": ("0.13.8", lambda value: replace(LOCK, uv=replace(LOCK.uv, version=value))),
}


@pytest.mark.parametrize("field", FIELDS)
@given(data=st.data())
def test_a_hostile_value_is_refused_or_harmless(field: str, data: st.DataObject) -> None:
    good, with_value = FIELDS[field]
    cut = data.draw(st.integers(0, len(good)))
    value = data.draw(st.one_of(ANYTHING, ANYTHING.map(lambda text: good[:cut] + text + good[cut:])))
    try:
        lock = loads(dumps(with_value(value)))
    except LockError:
        return
    check(lock)


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_holds_its_good_value(field: str) -> None:
    good, with_value = FIELDS[field]
    check(loads(dumps(with_value(good))))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", "1.0\n"),
        ("version", " 1.0"),
        ("uv's version", "0.13.8 "),
        ("as_of", "2026-11-20\n00:00:00Z"),
        ("as_of", "2026-11-20$00:00:00Z"),
        ("as_of", "20261120T000000Z"),
    ],
)
def test_what_their_parsers_would_let_through_is_no_lock(field: str, value: str) -> None:
    with pytest.raises(LockError, match="is no"):
        loads(dumps(FIELDS[field][1](value)))


@pytest.mark.fault(
    "Matrices, rules, locks",
    "newlines, quotes, $(…), backticks, template and Dockerfile syntax in any field of a lock",
    "refused with file and line, or the Dockerfile has exactly the instructions of a harmless lock",
)
@pytest.mark.parametrize("path", list(leaves(lock_table(LOCK))), ids=lambda path: ".".join(map(str, path)))
def test_no_field_of_a_lock_becomes_an_instruction(path: tuple[str | int, ...]) -> None:
    table = lock_table(LOCK)
    good = functools.reduce(lambda part, key: part[key], path, table)
    slot = "here goes the value"
    written = "\n".join(render_table(with_leaf(table, path, slot), ())) + "\n"  # once: of the text one value changes
    assert written.count(render_value(slot)) == 1
    for piece in HOSTILE:
        for value in [piece, f"{good}{piece}"] if isinstance(good, str) else [piece]:
            text = written.replace(render_value(slot), render_value(value))
            try:
                lock = loads(text, "x.toml")
            except LockError as error:
                assert re.search(r"x\.toml(:\d+)?: ", str(error))  # noqa: PT017
                continue
            check(lock)


@pytest.mark.parametrize("field", ["cell", "image"])
def test_no_name_becomes_a_word_of_the_printed_command(field: str) -> None:
    words = shlex.split(dockerfile.render(LOCK, TAG).arguments)
    place = words.index(f"{TAG}-plain")
    for piece in HOSTILE:
        try:
            lock = loads(dumps(replace(LOCK, **{field: f"tiny{piece}"})))  # type: ignore[arg-type]
        except LockError:
            continue
        found = shlex.split(dockerfile.render(lock, local_tags(lock)[0]).arguments)
        assert re.fullmatch(r"imagegen/[a-z0-9._-]+:[a-z0-9._-]*-plain", found[place])
        assert [*found[:place], *found[place + 1 :]] == [*words[:place], *words[place + 1 :]]


HOSTILE_IN_MATRIX = [
    *("x\nRUN evil", "x\r\nRUN evil", "x\u2028y", "$(evil)", "`evil`", "${HOME}", "{{ 7 * 7 }}", "{% raw %}", "\\"),
    *(
        '"',
        "'",
        "ends in \\",
        "REQUIREMENTS",
        "IMAGEGEN",
        "# syntax=evil",
        "; evil",
        "<<EOF",
        "a b",
        "../x",
        "/",
        "\x1b[31m",
    ),
    "\u202etxt",
]


@pytest.mark.fault(
    "Matrices, rules, locks",
    "the same in any field of a matrix",
    "refused with file, line and column, or the Dockerfile has exactly the instructions of a harmless matrix",
)
@pytest.mark.parametrize("path", list(leaves(yaml.safe_load(WITH_ENV))), ids=lambda path: ".".join(map(str, path)))
def test_no_field_of_a_matrix_becomes_an_instruction(path: tuple[str | int, ...], tmp_path: Path) -> None:
    table = yaml.safe_load(WITH_ENV)
    for piece in HOSTILE_IN_MATRIX:
        (tmp_path / "x.yaml").write_text(json.dumps(with_leaf(table, path, piece)), encoding="utf-8")  # JSON is YAML
        try:
            cells = matrix.load([tmp_path]).cells()
        except MatrixErrors as errors:
            assert re.search(r"x\.yaml:\d+:\d+: ", str(errors))  # noqa: PT017
            continue
        for cell in cells:
            base = {name: getattr(cell.base, name) for name in ("name", "kind", "suite")}
            wheels = (replace(LOCK.wheels[2], because=cell.requirements[0].because), LOCK.wheels[-1])
            lock = replace(LOCK, cell=cell.id, image=cell.image, axes=dict(cell.axes), inputs=dict(cell.inputs))
            env = cell.env
            check(loads(dumps(replace(lock, env=env, wheels=wheels, base=replace(LOCK.base, **base)))))


@pytest.mark.fault(
    "Matrices, rules, locks",
    "a lock's reason or value longer than a line that BuildKit reads (65,535 bytes)",
    "refused before anything is written: names the line and its beginning",
)
def test_a_line_that_buildkit_cannot_read_is_refused() -> None:
    render(replace(LOCK, wheels=(replace(LOCK.wheels[-1], because="é" * 32_766),)))
    with raises("lock-too-large") as caught:
        render(replace(LOCK, wheels=(replace(LOCK.wheels[-1], because="é" * 32_767),)))
    assert "# éé" in str(caught.value)


def test_the_last_gate_refuses_what_no_lock_can_hold() -> None:
    lock = replace(LOCK, env=(EnvVar("X", "1\nRUN evil", "why"),))
    with raises("lock-value-unsupported"):
        render(lock)


@pytest.mark.parametrize("user", ["", "app", "1000:1000"])
def test_a_base_with_a_user_of_its_own_is_built_as_root_and_runs_as_that_user(user: str) -> None:
    config = ImageConfig(("PATH=/usr/bin",), ("/hello",), (), user, "")
    content = RegistryImage("sha256:" + "a" * 64, "sha256:" + "b" * 64, config, ())
    lock = replace(LOCK, base=replace(LOCK.base, kind="registry", suite=None, image="docker.io/a/b:1", content=content))
    users = [line for line in render(lock).splitlines() if line.startswith("USER")]
    assert users == (["USER root", f"USER {user}"] if user else [])
    assert image(lock, []).config.count(b'"User":"%s"' % user.encode()) == bool(user)
