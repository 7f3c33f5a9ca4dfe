"""Fields of an image's config that a matrix sets: in the lock, in the image and in the rendered Dockerfile."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagegen.image import dockerfile
from imagegen.image.layers.image_config import image, labels
from imagegen.image.layers.support import ENTRYPOINT
from imagegen.lock import contradictions, dumps
from imagegen.lock.file import loads
from imagegen.lock.model import Lock
from imagegen.oci.documents import ImageConfig, RemoteImage
from imagegen.spec.model import ConfigField, EnvVar, ExposedPort, Label
from tests.support.matrix_samples import SMALL, complaint, load
from tests.support.tiny_lock import LOCK

SHELL = ConfigField("entrypoint", ("sh", "-c", 'echo "$0" \\'), "b")
FULL = replace(
    LOCK,
    config=(ConfigField("cmd", ("$HOME",), "b"), SHELL, ConfigField("user", ("7",), "b")),
    labels=(Label("com.example.team", 'a "b" $c', "b"),),
    ports=(ExposedPort("4791/udp", "b"), ExposedPort("8265/tcp", "b")),
)
FIELDS = """    gpus: [sm_90]
    config:
      cmd: {value: [serve], because: b}
      user: {value: "1000", because: b}
    labels: {team: {value: a, because: b}}
    ports: {"8265": dashboard}"""
TEXT = SMALL.replace("    gpus: [sm_90]", FIELDS)


def config(lock: Lock) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(image(lock, ()).config)["config"]
    return found


def test_an_image_without_fields_has_those_of_imagegen() -> None:
    assert config(LOCK).keys() == {"Cmd", "Entrypoint", "Env", "Labels", "WorkingDir"}
    assert config(LOCK)["Cmd"] == ["/bin/bash"]


PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.mark.parametrize(
    ("base", "own", "expected"),
    [
        ((), {}, {"PATH": f"/opt/venv/bin:{PATH}"}),
        ((), {"PATH": "/d/bin"}, {"PATH": f"/opt/venv/bin:/d/bin:{PATH}"}),
        (("PATH=",), {"PATH": "/d/bin"}, {"PATH": f"/opt/venv/bin:/d/bin:{PATH}"}),
        (("PATH=/c:/d/bin:/bin",), {"PATH": "/d/bin"}, {"PATH": "/opt/venv/bin:/d/bin:/c:/bin"}),
        (("PATH=/c", "A=/b"), {"A": "/a"}, {"PATH": "/opt/venv/bin:/c", "A": "/a"}),
        (("LD_LIBRARY_PATH=/c::/d",), {}, {"LD_LIBRARY_PATH": "/c::/d"}),
        (("LD_LIBRARY_PATH=/c::/d",), {"LD_LIBRARY_PATH": "/d:/e"}, {"LD_LIBRARY_PATH": "/d:/e:/c"}),
        (("LIBRARY_PATH=/cuda/stubs",), {"LIBRARY_PATH": "/d"}, {"LIBRARY_PATH": "/d:/cuda/stubs"}),
    ],
)  # fmt: skip
def test_search_paths_of_the_base_are_kept_after_the_locks(
    base: tuple[str, ...], own: dict[str, str], expected: dict[str, str]
) -> None:
    digest = "sha256:" + "0" * 64
    content = RemoteImage(digest, digest, ImageConfig(base, (), (), "", ""), ())
    registry = replace(
        LOCK.base, kind="registry", suite=None, debs=(), archives={}, image="a.example.org/b:1", content=content
    )
    lock = replace(LOCK, base=registry, env=tuple(EnvVar(*variable, "b") for variable in own.items()))
    variables = dict(line.partition("=")[::2] for line in config(lock)["Env"])
    assert expected.items() <= variables.items()
    rendered = dockerfile.render(lock, "tiny:test").dockerfile
    assert all(f'{name}="{value}"' in rendered for name, value in expected.items())


def test_an_entry_point_of_its_own_has_no_shell_as_its_arguments() -> None:
    found = config(replace(LOCK, config=(SHELL,)))
    assert (found["Entrypoint"], found["Cmd"]) == ([ENTRYPOINT, *SHELL.value], [])


def test_fields_are_read_back_from_a_lock() -> None:
    assert loads(dumps(FULL)) == FULL


def test_a_rendered_dockerfile_has_the_fields_with_literal_values() -> None:
    lines = dockerfile.render(FULL, "tiny:test").dockerfile.splitlines()
    assert {"EXPOSE 4791/udp", "EXPOSE 8265/tcp", "USER 7", 'CMD ["$HOME"]'} <= set(lines)
    assert r'LABEL com.example.team="a \"b\" \$c"' in lines
    assert rf'ENTRYPOINT ["{ENTRYPOINT}", "sh", "-c", "echo \"$0\" \\"]' in lines


def test_a_cell_has_the_fields_of_its_image(tmp_path: Path) -> None:
    (cell,), (plain,) = (load(tmp_path / name, text).select("small") for name, text in {"a": TEXT, "b": SMALL}.items())
    assert [(each.name, each.value) for each in cell.config] == [("cmd", ("serve",)), ("user", ("1000",))]
    assert cell.ports == (ExposedPort("8265/tcp", "dashboard"),)
    assert cell.inputs.keys() - plain.inputs.keys() == {"config", "labels", "ports"}
    locked = replace(LOCK, config=cell.config, labels=cell.labels, ports=cell.ports)
    assert not {"config", "label", "port"} & set(contradictions(locked, cell))
    assert {"config", "label", "port"} <= set(contradictions(LOCK, cell))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('value: "1000"', "value: ray"),
        ('value: "1000"', 'value: "1000:users"'),
        ("[serve]", "serve"),
        ("[serve]", "[]"),
        ("8265", "70000"),
        ("8265", "8265/http"),
        ("{team:", "{dev.imagegen.cell:"),
        ("{team:", "{org.opencontainers.image.title:"),
        ("{team:", '{"a b":'),
    ],
)
def test_a_malformed_field_is_an_error_with_its_line(old: str, new: str, tmp_path: Path) -> None:
    assert complaint(tmp_path / "sound", TEXT) == ""
    assert complaint(tmp_path / "faulty", TEXT.replace(old, new, 1))


def test_labels_of_imagegen_stay() -> None:
    assert labels(LOCK).items() <= labels(replace(LOCK, labels=FULL.labels)).items() | {
        ("dev.imagegen.inputs", labels(LOCK)["dev.imagegen.inputs"])
    }
