"""The bill of materials is valid CycloneDX, complete, and the same whenever it is made."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from packageurl import PackageURL

from imagegen.audit.model import InstalledDeb, Licence, OsRelease
from imagegen.core.git.submodule import Submodule
from imagegen.lock.foundation import LockedBase
from imagegen.lock.model import (
    PATCHED,
    Lock,
    LockedFile,
    LockedGit,
    LockedPatch,
    LockedSdist,
    LockedWheel,
    WheelPatch,
)
from imagegen.oci.documents import ImageConfig, RemoteImage
from imagegen.trust.licences import KnownLicences
from imagegen.trust.sbom import sbom
from tests.support.environment_samples import combined
from tests.support.golden import Golden
from tests.support.lock_samples import LOCK, wheel
from tests.support.lock_samples import locks as any_lock
from tests.support.shipped_locks import NAMES, shipped_lock
from tests.support.source_builds import BUILD, BUILT_WHEEL, WITH_BUILD

DIGEST = "sha256:" + "d" * 64
ZLIB = InstalledDeb("1:1.2", "amd64", "zlib", "1:1.2", ("Zlib",))
COMMIT = LockedGit("main", "https://user:secret@example.org/demo", "1" * 40, "2" * 40)
MODULE = Submodule("third_party/cutlass", "https://example.org/cutlass", "3" * 40, "4" * 40)


@functools.cache
def validator() -> Any:
    """Return CycloneDX's validator; its import takes seconds, which only these tests pay."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    return JsonStrictValidator(SchemaVersion.V1_6)


def document(lock: Lock, known: KnownLicences | None = None) -> dict[str, Any]:
    """Return the bill of materials as it is read back, valid as far as the schema goes."""
    text = sbom(lock, DIGEST, known or KnownLicences()).decode()
    assert validator().validate_str(text) is None
    found: dict[str, Any] = json.loads(text)
    return found


def component(found: dict[str, Any], name: str) -> dict[str, Any]:
    (one,) = [each for each in found["components"] if each["name"] == name]
    assert isinstance(one, dict)
    return one


def properties(found: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in found.get("properties", ())}


@pytest.mark.parametrize("name", NAMES)
def test_all_of_a_shipped_lock_is_in_it(name: str) -> None:
    lock = shipped_lock(name)
    text = sbom(lock, DIGEST, KnownLicences())
    assert text == sbom(replace(lock), DIGEST, KnownLicences())
    found = json.loads(text)
    hashes = {each["hashes"][0]["content"] for each in found["components"] if "hashes" in each}
    archive = lock.interpreter.file
    own = {archive.sha256} if archive else set()
    assert hashes == own | {each.file.sha256 for each in lock.wheels} | {each.sha256 for each in lock.debs}
    root = found["metadata"]["component"]["bom-ref"]
    refs = [root, *(each["bom-ref"] for each in found["components"])]
    assert len(set(refs)) == len(refs)
    requested = {each["ref"]: each["dependsOn"] for each in found["dependencies"]}
    assert requested.keys() == set(refs)
    reached, waiting = {root}, [root]
    while waiting:
        new = set(requested[waiting.pop()]) - reached
        reached |= new
        waiting += new
    assert reached == set(refs)
    for each in found["components"]:
        if "purl" in each:
            purl = PackageURL.from_string(each["purl"])
            assert (purl.name, purl.version) == (each["name"], each["version"])


def test_a_shipped_lock_gives_a_valid_document() -> None:
    document(shipped_lock("sb3-maskable-cpu-py311"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_lock_gives_a_valid_document(name: str) -> None:
    document(shipped_lock(name))


@settings(max_examples=8)
@given(any_lock)
def test_any_lock_gives_a_valid_document(lock: Lock) -> None:
    document(lock)


def test_the_text(golden: Callable[[str, str], None]) -> None:
    golden("tiny-cu130-py311.cdx.json", sbom(WITH_BUILD, DIGEST, KnownLicences()).decode())


def test_it_speaks_of_one_image_alone() -> None:
    one, other = (json.loads(sbom(WITH_BUILD, f"sha256:{digit * 64}", KnownLicences())) for digit in "de")
    assert one["serialNumber"] != other["serialNumber"]
    assert one["metadata"]["timestamp"] == WITH_BUILD.as_of
    assert one["metadata"]["component"]["version"] == "sha256:" + "d" * 64


def test_what_is_compiled_has_its_sources() -> None:
    build = replace(BUILD, git=COMMIT, submodules=(MODULE,), patches=(LockedPatch("demo.patch", "5" * 64),))
    lock = replace(WITH_BUILD, builds=(build,))
    found = component(document(lock), "demo-ext")
    assert "hashes" not in found  # no wheel yet
    own, module = found["pedigree"]["ancestors"]
    assert properties(own) == {"imagegen:git-commit": "1" * 40, "imagegen:git-tree": "2" * 40}
    assert own["externalReferences"] == [{"type": "vcs", "url": "https://***@example.org/demo"}]
    assert own["hashes"][0]["content"] == BUILD.source.sha256
    assert (module["name"], properties(module)["imagegen:git-tree"]) == ("third_party/cutlass", "4" * 40)
    assert found["pedigree"]["patches"][0]["diff"]["url"].endswith("demo.patch#sha256=" + "5" * 64)
    assert "secret" not in json.dumps(found)
    made = replace(lock, wheels=(*lock.wheels, BUILT_WHEEL))
    assert component(document(made), "demo-ext")["hashes"][0]["content"] == BUILT_WHEEL.file.sha256


def test_what_is_made_of_an_sdist_has_it() -> None:
    wheel = WITH_BUILD.wheels[0]
    sdist = LockedSdist(LockedFile("demo-1.0.tar.gz", 9, "6" * 64, "pypi"), ())
    lock = replace(WITH_BUILD, wheels=(replace(wheel, sdist=sdist), *WITH_BUILD.wheels[1:]))
    found = component(document(lock), wheel.name)
    assert "imagegen:index" not in properties(found)
    (source,) = found["pedigree"]["ancestors"]
    assert source["hashes"][0]["content"] == "6" * 64
    assert "file_name=demo-1.0.tar.gz" in source["purl"]


def test_what_is_patched_has_its_original_and_its_patches() -> None:
    wheel = WITH_BUILD.wheels[0]
    patch = WheelPatch("patches/a.patch", "7" * 64, 9, "It was wrong.", "https://example.org/1")
    file = LockedFile(wheel.file.filename, 10, "8" * 64, PATCHED)
    patched = replace(wheel, file=file, sdist=None, original=wheel.file, patches=(patch,))
    lock = replace(WITH_BUILD, wheels=(patched, *WITH_BUILD.wheels[1:]))
    found = document(lock)
    package = component(found, wheel.name)
    assert properties(package)["imagegen:index"] == wheel.file.index
    assert package["hashes"][0]["content"] == "8" * 64
    assert package["pedigree"]["ancestors"][0]["hashes"][0]["content"] == wheel.file.sha256
    (one,) = package["pedigree"]["patches"]
    assert one["diff"]["url"] == "patches/a.patch#sha256=" + "7" * 64
    assert one["resolves"][0]["source"]["url"] == "https://example.org/1"


def test_licences_are_listed_and_unknown_ones_marked(golden: Golden) -> None:
    one, two, *_ = WITH_BUILD.wheels
    known = KnownLicences({one.file.sha256: Licence("MIT"), two.file.sha256: Licence(text="BSD\nBe kind")})
    found = document(WITH_BUILD, known)
    assert component(found, one.name)["licenses"] == [{"acknowledgement": "declared", "expression": "MIT"}]
    (named,) = component(found, two.name)["licenses"]
    assert named["license"]["name"] == "BSD"
    golden.check(named["license"]["text"]["content"])
    silent = document(WITH_BUILD, KnownLicences({one.file.sha256: Licence()}))
    golden.check(
        properties(component(silent, one.name))["imagegen:licence"],
        properties(component(silent, two.name))["imagegen:licence"],
    )


@pytest.mark.parametrize(
    ("licences", "version", "expected"),
    [
        (("GPL-2+",), "", "GPL-2.0-or-later"),
        ((), "", "unknown: its copyright file is not machine-readable"),
        (None, "", "unknown: it has no copyright file"),
        (("GPL-2+",), "+older", "unknown: the base was not looked at"),
    ],
)
def test_debian_packages(licences: tuple[str, ...] | None, version: str, expected: str) -> None:
    deb = WITH_BUILD.base.debs[0]
    installed = InstalledDeb(deb.version + version, deb.architecture, "source", "1", licences)
    found = component(document(WITH_BUILD, KnownLicences(debs={deb.name: installed})), deb.name)
    assert found["purl"].startswith(f"pkg:deb/debian/{deb.name}@")
    said = found["licenses"][0]["expression"] if "licenses" in found else properties(found)["imagegen:licence"]
    assert said == expected


def test_a_registrys_base_is_listed_by_digest_and_its_packages_as_dpkg_has_them() -> None:
    content = RemoteImage("sha256:" + "7" * 64, DIGEST, ImageConfig((), (), (), "", ""), ())
    base = LockedBase("cuda", "registry", None, {}, (), image="nvidia/cuda:13.0.1-base", content=content)
    lock = replace(WITH_BUILD, base=base)
    found = document(lock, KnownLicences({}, {"zlib1g": ZLIB}, OsRelease("ubuntu", "24.04", "noble")))
    image = component(found, "nvidia/cuda:13.0.1-base")
    assert PackageURL.from_string(image["purl"]).qualifiers == {
        "arch": "amd64",
        "repository_url": "docker.io/nvidia/cuda",
    }
    assert image["hashes"][0]["content"] == "7" * 64
    assert component(found, "zlib1g")["purl"] == "pkg:deb/ubuntu/zlib1g@1:1.2?arch=amd64&distro=noble"
    assert properties(image)["imagegen:system"] == "ubuntu 24.04"
    assert component(found, "zlib1g")["licenses"] == [{"acknowledgement": "concluded", "expression": "Zlib"}]


def test_environments_share_a_component_and_have_versions_of_their_own() -> None:
    def lock_of(*wheels: LockedWheel) -> Lock:
        return replace(LOCK, wheels=wheels, builds=(), file_conflicts=(), gpu=None)

    asked = wheel("torch", "2.0", because="The models.")
    old, new = wheel("numpy", "1.0", via=("torch",)), wheel("numpy", "2.0", via=("torch",))
    patched = replace(asked, file=replace(asked.file, sha256="e" * 64))
    found = document(
        combined({"main": lock_of(old, asked), "other": lock_of(new, asked), "third": lock_of(new, patched)})
    )
    stack = [each for each in found["components"] if each["name"] in ("numpy", "torch")]
    named = {
        each["bom-ref"]: [each["value"] for each in each["properties"] if each["name"] == "imagegen:environment"]
        for each in stack
    }
    first, second = (
        f"pkg:pypi/numpy@{version}?file_name=numpy-{version}-py3-none-any.whl" for version in ("1.0", "2.0")
    )
    torch = "pkg:pypi/torch@2.0?file_name=torch-2.0-py3-none-any.whl"
    assert named == {first: ["main"], second: ["other", "third"], torch: ["main", "other"], f"{torch}#third": ["third"]}
    needs = {each["ref"]: each["dependsOn"] for each in found["dependencies"]}
    assert (needs[torch], needs[f"{torch}#third"]) == ([first, second], [second])
    image = properties(found["metadata"]["component"])
    assert image["imagegen:environment:other"] == "other-cpu-py311 at /opt/venvs/other"
