"""`imagegen publish` on the command line: what it refuses, its dry run, and what it prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from imagegen.app.lock_files import LockFiles
from imagegen.app.matrices import Matrices
from imagegen.app.publish import PublishedImage
from imagegen.app.publisher import Publisher, PublishOptions, parse_destination
from imagegen.cli import build_command, publish_command
from imagegen.cli.app import App
from imagegen.core.errors import TrustError, UsageError
from imagegen.image.layers import recorded_image
from imagegen.lock import read
from imagegen.oci.documents import MANIFEST_TYPE, Descriptor, digest_of, write_image_index
from imagegen.oci.registry.push import BlobTotals, PushTotals
from imagegen.spec import Matrix
from imagegen.spec.model import Cell, Declarations
from imagegen.trust.project import FILE
from tests.support.environment import environment
from tests.support.errors import raises
from tests.support.golden import Golden
from tests.support.matrix_samples import shipped_matrix
from tests.support.registry_server_writes import Writable

ROOT = Path(__file__).parents[2]
LOCK = read(ROOT / "locks" / "blackwell-vllm-cu130-py311.toml")
CELL = cast("Cell", SimpleNamespace(id=LOCK.cell, image=LOCK.image, axes=LOCK.axes, declarations=Declarations()))


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    matrix = SimpleNamespace(defaults={LOCK.image: LOCK.cell}, select=lambda _, **__: (CELL,), cells=lambda: ())
    monkeypatch.setattr(Matrices, "matrix", cast("Matrix", matrix))
    monkeypatch.setattr(LockFiles, "fresh", lambda *_: LOCK)
    return App(environment(tmp_path), tmp_path)


@pytest.fixture
def registry() -> Iterator[Writable]:
    registry = Writable()
    yield registry
    registry.close()


def run(app: App, *arguments: str) -> tuple[str, str]:
    ended = CliRunner().invoke(publish_command.command, arguments, obj=app)
    if ended.exception and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    assert ended.exit_code == 0, ended.output
    return ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("named", "why"),
    [
        (None, "neither --to nor publish.yaml names one"),
        ("ghcr.io/acme/rl:latest", "each image gets a repository below the path"),
        ("ghcr.io/acme/rl@sha256:" + "0" * 64, "each image gets a repository below the path"),
        ("https://ghcr.io/acme", "it is an address"),
        ("me:secret@ghcr.io/acme", "it begins with a user"),
        ("docker.io", "below the name of a user"),
        ("", "not a repository's name"),
        ("ghcr.io/Acme", "lower-case"),
    ],
)
def test_where_nothing_can_go(named: str | None, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_destination(named)
    assert why in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("named", "name"),
    [
        ("ghcr.io/acme/rl", "ghcr.io/acme/rl/demo"),
        ("ghcr.io/acme/rl/", "ghcr.io/acme/rl/demo"),
        ("acme", "docker.io/acme/demo"),
        ("docker.io/acme", "docker.io/acme/demo"),
        ("127.0.0.1:5000", "127.0.0.1:5000/demo"),
        ("registry.example", "registry.example/demo"),
    ],
)
def test_where_an_image_goes(app: App, named: str, name: str) -> None:
    assert Publisher(app, named, PublishOptions()).reference("demo").name == name


def test_the_project_can_name_the_place(app: App, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("publish: {to: 127.0.0.1:1/acme/rl}\n")
    out, _ = run(app, LOCK.image, "--dry-run")
    assert out.startswith(f"{LOCK.cell} -> 127.0.0.1:1/acme/rl/{LOCK.image}\n")


def test_a_dry_run_of_a_recorded_lock_needs_no_server(app: App, golden: Golden) -> None:
    out, err = run(app, LOCK.image, "--to", "127.0.0.1:1/acme/rl", "--dry-run", "--json")
    (result,) = json.loads(out)
    assert LOCK.record
    assert result["digest"] == LOCK.record.digest
    assert result["sent"] == sum(layer.size for layer in LOCK.record.layers)
    assert result["tags"]["moving"] == ["latest", "cu130", "cu130-py311"]
    assert "NVIDIA" in " ".join(result["steps"])
    golden.check(" ".join(result["unknown"]), err)


OWN = ec.generate_private_key(ec.SECP256R1())
LOCKED = BestAvailableEncryption(b"correct horse")


def private(key: Any = OWN, lock: Any = None) -> bytes:
    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock or NoEncryption()))


def public(key: Any = OWN) -> bytes:
    return bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


@pytest.mark.parametrize(
    ("key", "named", "why"),
    [
        pytest.param(None, public(), "cannot be read", id="no such file"),
        pytest.param(public(), public(), "only a public key", id="the public half"),
        pytest.param(private(rsa.generate_private_key(65537, 2048)), public(), "of the kind RSA", id="RSA"),
        pytest.param(private(lock=LOCKED), public(), "the password is wrong", id="another password"),
        pytest.param(private(), public(ec.generate_private_key(ec.SECP256R1())), "does not name", id="a stranger's"),
        pytest.param(private(), b"?", "trusted key 'release' cannot be used", id="a broken trusted key"),
    ],
)
def test_a_dry_run_refuses_a_key_as_publishing_does(
    app: App, tmp_path: Path, key: bytes | None, named: bytes, why: str
) -> None:
    (tmp_path / FILE).write_text("publish: {keys: {release: release.pub}}\n")
    (tmp_path / "release.pub").write_bytes(named)
    if key:
        (tmp_path / "release.pem").write_bytes(key)
    app.project.env["COSIGN_PASSWORD"] = "wrong"  # type: ignore[index]
    for more in (("--dry-run",), ()):
        with pytest.raises(TrustError) as refused:
            run(app, LOCK.image, "--to", "127.0.0.1:1/acme/rl", "--key", str(tmp_path / "release.pem"), *more)
        assert why in str(refused.value), more


def test_a_dry_run_says_who_signs(app: App, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("publish: {keys: {release: release.pub}}\n")
    (tmp_path / "release.pub").write_bytes(public())
    (tmp_path / "release.pem").write_bytes(private())
    arguments = (LOCK.image, "--to", "127.0.0.1:1/acme/rl", "--dry-run")
    assert "signed with release.pem" in run(app, *arguments, "--key", str(tmp_path / "release.pem"))[0]
    assert "not signed: no key is named" in run(app, *arguments)[0]


def test_a_dry_run_asks_the_registry_and_changes_nothing(app: App, registry: Writable) -> None:
    assert LOCK.record
    venv = LOCK.record.layers[1]
    registry.documents[f"/v2/acme/rl/{LOCK.image}/blobs/{venv.digest}"] = ("x", bytes(venv.size))
    out, _ = run(app, LOCK.image, "--to", f"{registry.host}/acme/rl", "--dry-run", "--no-test")
    assert f"1 layer, {venv.size} B: already there" in out
    assert "(new)" in out
    assert "  moves" not in out
    assert {method for method, _ in registry.requested} == {"GET", "HEAD"}


def test_a_dry_run_with_another_compression_does_not_blame_the_lock(app: App) -> None:
    out, _ = run(app, LOCK.image, "--to", "127.0.0.1:1/acme/rl", "--dry-run", "--compression", "gzip")
    assert "unknown   the image's digest, and the size of its layers: gzip layers are not known before" in out
    assert "--record" not in out
    assert "that must be built" not in out


def test_the_last_line_is_the_digest_alone(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def publish(*_: Any) -> tuple[PublishedImage, ...]:
        none = BlobTotals()
        moved = PushTotals(none, none, BlobTotals(3, 100))
        assert LOCK.record
        digest, name = "sha256:1", "ghcr.io/acme/rl/demo"
        return (PublishedImage(LOCK.cell, name, digest, LOCK.record, "fixed", {"latest": None}, moved, None, ""),)

    monkeypatch.setattr("imagegen.cli.publish_command.publish_images", publish)
    out, err = run(app, LOCK.image, "--to", "ghcr.io/acme/rl")
    assert out == "sha256:1\n"
    assert "ghcr.io/acme/rl/demo:latest -> sha256:1" in err
    (result,) = json.loads(run(app, LOCK.image, "--to", "ghcr.io/acme/rl", "--json")[0])
    assert result["blobs"]["sent"] == {"blobs": 3, "size": 100}


def test_options_that_contradict_each_other(app: App) -> None:
    with raises("usage-option-conflict"):
        run(app, LOCK.image, "--to", "ghcr.io/acme/rl", "--no-test", "--require-gpu")


@pytest.fixture
def shipped(app: App, monkeypatch: pytest.MonkeyPatch) -> App:
    """The app with the shipped matrix, and the committed locks as they are."""
    monkeypatch.setattr(Matrices, "matrix", shipped_matrix())
    monkeypatch.setattr(LockFiles, "fresh", lambda _, cell: read(ROOT / "locks" / f"{cell.id}.toml"))
    return app


def test_a_dry_run_names_the_index_that_recorded_locks_decide(shipped: App) -> None:
    plain = (*("--to", "127.0.0.1:1/acme/rl"), "--dry-run", "--json")
    expected = {}
    for cell in ("cpu-grpo-cpu-py311", "cpu-grpo-cpu-py311-linux-arm64"):
        image = recorded_image(read(ROOT / "locks" / f"{cell}.toml"))
        expected[cell] = Descriptor(MANIFEST_TYPE, image.digest, len(image.manifest))
    index = digest_of(write_image_index(dict(zip(("linux/amd64", "linux/arm64"), expected.values(), strict=True))))
    for named in ("cpu-grpo", "cpu-grpo-cpu-py311-linux-arm64", "cpu-grpo-cpu-py311*"):
        plans = json.loads(run(shipped, named, "--platform", "all", *plain)[0])
        assert {each["cell"]: each["digest"] for each in plans} == {
            cell: manifest.digest for cell, manifest in expected.items()
        }
        assert [each["index"] for each in plans] == [index, index]
        assert plans[0]["tags"] == plans[1]["tags"]
    (alone,) = json.loads(run(shipped, "cpu-grpo", "--platform", "linux/arm64", *plain)[0])
    assert (alone["index"], alone["tags"]["moving"]) == (None, ["cpu-py311-linux-arm64"])


def test_platforms_that_an_image_does_not_have(shipped: App, tmp_path: Path) -> None:
    to = ("--to", "127.0.0.1:1/acme/rl", "--dry-run")
    for cell, platform in (("cpu-grpo", "linux/riscv64"), ("hopper-vllm-cu128-py311", "linux/arm64")):
        with raises("usage-unknown-platform"):
            run(shipped, cell, "--platform", platform, *to)
    output = ("--platform", "all", "--output", f"oci:{tmp_path / 'layout'}")
    with raises("usage-several-cells"):  # they differ in more than the platform
        CliRunner().invoke(
            build_command.command, ("hopper-vllm-cu130-py31*", *output), obj=shipped, catch_exceptions=False
        )
