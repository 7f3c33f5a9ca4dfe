"""`imagegen verify`: whose image it is, by its name or by --cell, and who must have signed it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from imagegen.lock import inputs_hash
from imagegen.oci.documents import INDEX_TYPE, MANIFEST_TYPE, Descriptor, digest_of, write_image_index
from imagegen.publish.tags import contradiction, index_inputs
from tests.support.command_line import Run
from tests.support.matrix_samples import shipped_matrix
from tests.support.registry_server import StandIn
from tests.support.verified_image import ARM64, CELL, World, lock_of, publish

OTHER = "blackwell-vllm-cu130-py312"
IMAGE = "blackwell-vllm"
Verify = Callable[..., tuple[object, set[str]]]


@pytest.fixture(scope="module")
def registry() -> Iterator[StandIn]:
    with closing(StandIn()) as registry:
        yield registry


@pytest.fixture(scope="module")
def signed(registry: StandIn, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The image of CELL in its repository, signed."""
    return publish(registry, lock_of(CELL), tmp_path_factory.mktemp("signed"), f"acme/rl/{IMAGE}")


@pytest.fixture
def verify(signed: World, run: Run, tmp_path: Path) -> Verify:
    """Run `imagegen verify` in a project that names the key: (exit code, names of the steps that fail)."""
    project = tmp_path / "project"
    project.mkdir()
    signed.write_publish(project)

    def verify(tag: str, *options: str, repository: str = f"acme/rl/{IMAGE}") -> tuple[object, set[str]]:
        published = signed.published
        if repository != published.repository:  # copied with all that is attached, as who may write there can do
            here, there = f"/v2/{published.repository}/", f"/v2/{repository}/"
            documents = published.registry.documents
            documents |= {path.replace(here, there): each for path, each in documents.items() if path.startswith(here)}
        name = f"{published.registry.host}/{repository}"
        if tag.startswith("sha256:"):
            name += f"@{tag}"
        else:
            published.registry.documents[f"/v2/{repository}/manifests/{tag}"] = MANIFEST_TYPE, published.image.manifest
            name += f":{tag}"
        done = run("--project", str(project), "verify", name, "--no-layers", "--json", *options)
        steps = json.loads(done.out)["steps"]
        return done.code, {step["name"] for step in steps if step["outcome"] == "fail"}

    return verify


WRONG_NAME = (1, {"name"})
GOOD = (0, set[str]())


COPIED = pytest.mark.fault("Trust", "a signed image gets the name of another, or another cell's tag", "verify names it")


@COPIED
def test_an_image_under_another_name_fails(verify: Verify, signed: World) -> None:
    digest = signed.published.image.digest
    assert verify(digest) == GOOD
    assert verify(digest, repository="acme/rl/cpu-grpo") == WRONG_NAME
    assert verify(digest, repository=f"{IMAGE}/mirror") == WRONG_NAME
    assert verify(digest, repository=f"mirror/of/{IMAGE}") == GOOD


@COPIED
def test_a_tag_of_another_cell_fails(verify: Verify, signed: World) -> None:
    assert verify("cu130-py311") == GOOD
    assert verify("cu130-py312") == WRONG_NAME
    matrix, lock = shipped_matrix(), signed.published.lock
    cells = [cell for cell in matrix.cells() if cell.image == IMAGE]
    (default,) = matrix.select(IMAGE)
    own = inputs_hash(lock).removeprefix("sha256:")[:8]
    for tag in ("cu130-py311-gzip", f"2026.11.20-any-title-{own}", "stable", "1"):
        assert contradiction(tag, [lock], cells, default) is None, tag
    for tag in ("nightly-cu130-py312-gzip", "2026.11.20-torch2.13.0-cu130-py311-01234567"):
        assert contradiction(tag, [lock], cells, default), tag


def test_the_cell_that_is_named_is_demanded(verify: Verify) -> None:
    assert verify("1", "--cell", CELL) == GOOD
    assert verify("1", "--cell", CELL, repository="acme/rl/cpu-grpo") == GOOD
    assert verify("cu130-py312", "--cell", CELL) == GOOD
    assert verify("1", "--cell", "") == WRONG_NAME, "an empty variable of a script demands no cell that there is"
    assert verify("1", "--cell", OTHER) == WRONG_NAME
    assert verify("1", "--cell", IMAGE) == WRONG_NAME, "an image's name is no cell's"


def test_a_layout_has_no_name_and_can_be_held_to_a_cell(signed: World, run: Run, tmp_path: Path) -> None:
    layout = signed.published.layout(tmp_path / "layout")
    for options, code in (((), 0), (("--cell", CELL), 0), (("--cell", OTHER), 1)):
        assert run("verify", layout, "--no-layers", *options).code == code, options


def test_a_signature_can_be_required(verify: Verify, signed: World, tmp_path: Path) -> None:
    digest = signed.published.image.digest
    assert verify(digest, "--require-signature") == GOOD
    assert verify(digest, "--require-signature", "--key", str(signed.project.keys[0].file)) == GOOD
    file = tmp_path / "project/publish.yaml"
    for text in ("", "publish: {keys: {}}"):
        file.write_text(text)
        assert verify(digest) == GOOD
        assert verify(digest, "--require-signature") == (1, {"signature"})
    file.unlink()
    assert verify(digest, "--require-signature") == (1, {"signature"})


@pytest.mark.parametrize("command", [["verify", "127.0.0.1:1/a/b:1"], ["publish", "cpu-grpo", "--dry-run"]])
def test_a_misspelt_publish_yaml_is_refused(command: list[str], run: Run, tmp_path: Path) -> None:
    (tmp_path / "publish.yml").write_text("publish: {}")
    assert run("--project", str(tmp_path), *command).code == 65


def test_each_mutable_tag_belongs_to_one_cell() -> None:
    matrix = shipped_matrix()
    cells = [cell for cell in matrix.cells() if cell.image == IMAGE]
    (default,) = matrix.select(IMAGE)
    locks = [lock_of(cell.id) for cell in cells]
    for tag in ("latest", "nightly", "cu130", "latest-gzip", *(cell.id.removeprefix(f"{IMAGE}-") for cell in cells)):
        assert sum(contradiction(tag, [lock], cells, default) is None for lock in locks) == 1, tag


def test_tags_of_an_index_are_those_of_its_cell_for_the_default_platform() -> None:
    matrix = shipped_matrix()
    cells = [cell for cell in matrix.cells() if cell.image == IMAGE]
    (default,) = matrix.select(IMAGE)
    locks = [lock_of(ARM64), lock_of(CELL)]
    own = index_inputs(locks).removeprefix("sha256:")[:8]
    for tag in ("latest", "cu130-py311", f"2026.11.20-any-title-{own}"):
        assert contradiction(tag, locks, cells, default) is None, tag
    alone = inputs_hash(lock_of(CELL)).removeprefix("sha256:")[:8]
    for tag in ("cu130-py311-linux-arm64", "cu130-py312", f"2026.11.20-any-title-{alone}"):
        assert contradiction(tag, locks, cells, default), tag


def test_an_index_on_the_command_line(registry: StandIn, signed: World, run: Run, tmp_path: Path) -> None:
    """Its name is held to the cells of its images, and each image has steps of its own."""
    arm64 = publish(registry, lock_of(ARM64), tmp_path / "arm64", f"acme/rl/{IMAGE}", signed_by=signed)
    images = {"linux/amd64": signed.published.image, "linux/arm64": arm64.published.image}
    index = write_image_index(
        {name: Descriptor(MANIFEST_TYPE, each.digest, len(each.manifest)) for name, each in images.items()}
    )
    registry.documents[signed.published.manifest("latest")] = INDEX_TYPE, index
    name = f"{registry.host}/acme/rl/{IMAGE}"
    project = tmp_path / "project"
    project.mkdir()
    for cell, code in ((CELL, 0), (ARM64, 0), (OTHER, 1)):
        done = run("--project", str(project), "verify", f"{name}:latest", "--no-layers", "--json", "--cell", cell)
        found = json.loads(done.out)
        assert (done.code, found["digest"]) == (code, digest_of(index)), cell
        assert {platform: each["digest"] for platform, each in found["platforms"].items()} == {
            platform: each.digest for platform, each in images.items()
        }
    assert run("--project", str(project), "verify", f"{name}:latest", "--no-layers").code == 0
