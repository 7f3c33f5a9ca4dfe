"""What advisories say of the packages of a lock."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import pytest

from imagegen.audit.model import Deb as InstalledDeb
from imagegen.audit.model import Release, System
from imagegen.plan.lock.model import Deb, Lock, LockedBase
from imagegen.supply.trust.advisories import Package, packages, vulnerabilities
from imagegen.supply.trust.osv import Advisory, Affected
from imagegen.supply.trust.project import Exemption
from tests.unit.builds_samples import WITH_BUILD
from tests.unit.shipped_locks import NAMES, shipped_lock
from tests.unit.test_lock_file import LOCK

TORCH = Package("PyPI", "torch", "2.13.0+cu130", ("vllm",), "torch 2.13.0+cu130")
TODAY = date(2026, 11, 22)


def advisory(
    id_: str, *events: tuple[str, str], names: tuple[str, ...] = (), name: str = "torch", gathers: tuple[str, ...] = ()
) -> Advisory:
    return Advisory(
        id_,
        frozenset({id_, *names}),
        frozenset(gathers),
        f"about {id_}",
        ("CVSS:3.1/AV:N",),
        (Affected("PyPI", name, frozenset(), (events,), ()),),
    )


def test_a_local_version_is_its_release() -> None:
    """2.13.0+cu130 comes after 2.13.0, as PEP 440 sorts them, and is affected where that is the last one."""
    last = advisory("GHSA-1", ("introduced", "0"), ("last_affected", "2.13.0"))
    fixed = advisory("GHSA-2", ("introduced", "0"), ("fixed", "2.13.0"))
    (found,) = vulnerabilities([TORCH], [last, fixed], ())
    assert found.names == ("GHSA-1",)


def test_names_are_compared_as_pypi_does() -> None:
    hit = advisory("GHSA-1", ("introduced", "0"), name="Flash_Attn")
    package = replace(TORCH, name="flash-attn")
    assert len(vulnerabilities([package], [hit], ())) == 1
    assert not vulnerabilities([replace(package, ecosystem="Debian:12")], [hit], ())


def test_what_several_databases_say_is_one() -> None:
    told = [
        advisory("GHSA-1", ("introduced", "0"), ("fixed", "2.14"), names=("CVE-7",)),
        advisory("PYSEC-1", ("introduced", "0"), ("fixed", "2.14.1"), names=("CVE-7",)),
        advisory("PYSEC-2", ("introduced", "0")),
    ]
    first, second = sorted(vulnerabilities([TORCH], told, ()), key=lambda each: each.names)
    assert (first.names, first.fixed) == (("CVE-7", "GHSA-1", "PYSEC-1"), "2.14.1")
    assert (second.names, second.fixed) == (("PYSEC-2",), None)
    assert first.severity == ("CVSS:3.1/AV:N",)


def test_what_gathers_others_is_left_to_them() -> None:
    gathering = advisory("DSA-1", ("introduced", "0"), gathers=("CVE-7", "CVE-8"))
    seven, eight = (advisory(f"DEBIAN-{each}", ("introduced", "0"), names=(each,)) for each in ("CVE-7", "CVE-8"))
    assert [each.names for each in vulnerabilities([TORCH], [gathering, seven], ())] == [
        ("DSA-1",),
        ("CVE-7", "DEBIAN-CVE-7"),
    ]
    assert len(vulnerabilities([TORCH], [gathering, seven, eight], ())) == 2


@pytest.mark.parametrize(
    ("exemption", "accepted"),
    [
        (Exemption("CVE-7", None, "nobody calls it", TODAY), True),
        (Exemption("GHSA-1", "torch", "nobody calls it", TODAY), True),
        (Exemption("CVE-7", None, "nobody calls it", TODAY - timedelta(1)), False),
        (Exemption("CVE-7", "vllm", "nobody calls it", TODAY), False),
        (Exemption("CVE-8", None, "nobody calls it", TODAY), False),
    ],
)
def test_what_is_accepted_is_so_until_a_day(exemption: Exemption, accepted: bool) -> None:
    (found,) = vulnerabilities([TORCH], [advisory("GHSA-1", ("introduced", "0"), names=("CVE-7",))], [exemption])
    assert found.accepted(TODAY) is accepted


def deb(name: str, version: str, source: str) -> Deb:
    return Deb(
        name, version, "amd64", 1, "a" * 64, "debian", f"pool/main/{source[0]}/{source}/{name}_{version}_amd64.deb"
    )


DEBS = (
    deb("bsdutils", "1:2.38.1-5", "util-linux"),
    deb("mount", "2.38.1-5", "util-linux"),
    deb("cpp", "4:12.2.0-3", "gcc-defaults"),
    deb("libselinux1", "3.4-1+b6", "libselinux"),
)


def on_debian(*debs: Deb) -> Lock:
    return replace(LOCK, base=replace(LOCK.base, suite="bookworm", debs=debs))


def sources(lock: Lock, installed: dict[str, InstalledDeb] | None = None) -> dict[str, str]:
    return {
        each.name: each.version
        for each in packages(lock, System({}, debs=installed or {}))
        if each.ecosystem == "Debian:12"
    }


def test_debian_packages_are_compared_by_their_sources() -> None:
    lock = on_debian(*DEBS)
    assert sources(lock) == {"util-linux": "2.38.1-5", "gcc-defaults": "4:12.2.0-3", "libselinux": "3.4-1"}
    known = {"cpp": InstalledDeb("4:12.2.0-3", "amd64", "gcc-defaults", "1.203")}
    assert sources(lock, known)["gcc-defaults"] == "1.203"
    other = {"cpp": InstalledDeb("4:13", "amd64", "gcc-defaults", "1.300")}
    assert sources(lock, other)["gcc-defaults"] == "4:12.2.0-3"  # what is known is of another base
    (shown,) = [each.shown for each in packages(lock, None) if each.name == "util-linux"]
    assert shown == "util-linux 2.38.1-5 (bsdutils, mount)"


@pytest.mark.parametrize(
    ("release", "ecosystem"),
    [
        (Release("ubuntu", "24.04", "noble"), "Ubuntu:24.04:LTS"),
        (Release("ubuntu", "25.10", ""), "Ubuntu:25.10"),
        (Release("debian", "13", "trixie"), "Debian:13"),
        (Release("alpine", "3.22", ""), None),
        (None, None),
    ],
)
def test_what_a_registrys_base_holds_is_what_dpkg_has_there(release: Release | None, ecosystem: str | None) -> None:
    base = LockedBase("cuda", "registry", None, {}, (), image="nvidia/cuda:13.0.1")
    system = System({}, debs={"libssl3": InstalledDeb("3.0-1", "amd64", "openssl", "3.0-1")}, release=release)
    found = [each for each in packages(replace(LOCK, base=base), system) if each.ecosystem != "PyPI"]
    assert [(each.ecosystem, each.name) for each in found] == ([(ecosystem, "openssl")] if ecosystem else [])


def test_every_package_of_the_stack_is_looked_at() -> None:
    assert {each.name for each in packages(WITH_BUILD, None) if each.ecosystem == "PyPI"} == {
        each.name for each in WITH_BUILD.packages
    }


@pytest.mark.parametrize("name", NAMES)
def test_shipped_locks_have_names_that_advisories_use(name: str) -> None:
    found = {each.name: each.version for each in packages(shipped_lock(name), None)}
    assert found["openssl"].startswith("3.0.")
    assert found["glibc"].startswith("2.36-")
    assert not found["util-linux"].startswith("1:")
