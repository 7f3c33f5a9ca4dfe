"""The bill of materials of an image, as CycloneDX, and the package URLs in it.

Sources: ECMA-424, CycloneDX 1.6; ECMA-427, Package-URL, and its registered types.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from imagegen.audit.model import InstalledDeb, OsRelease
from imagegen.core import registry
from imagegen.core.text import redact
from imagegen.core.types import Submodule
from imagegen.plan.lock import contents_hash, inputs_hash
from imagegen.plan.lock.environments import environments
from imagegen.plan.lock.foundation import LockedDeb
from imagegen.plan.lock.model import (
    LOCAL,
    Lock,
    LockedBuild,
    LockedFile,
    LockedGit,
    LockedPatch,
    LockedWheel,
    WheelPatch,
    title,
)
from imagegen.supply.trust.licences import KnownLicences, Terms, data, of_deb, of_wheel

_PLAIN = ".-_~:"  # beside letters and digits, what is never percent-encoded


def pypi(name: str, version: str, file: LockedFile | None) -> str:
    """Return the purl of a wheel, a source distribution, or a release; `name` is normalised as PyPI does.

    A package of the project is generic: one of this name on PyPI, with its vulnerabilities, is another's.
    """
    kind = "generic" if file and file.index == LOCAL else "pypi"
    return _purl(kind, name, version, {"file_name": file.filename if file else None})


def deb(package: LockedDeb, suite: str | None) -> str:
    """Return the purl of a .deb of Debian's archive, or of Ubuntu's; other archives are for one of the two."""
    vendor = "ubuntu" if package.archive == "ubuntu" else "debian"
    return _purl(f"deb/{vendor}", package.name, package.version, {"arch": package.architecture, "distro": suite})


def deb_of(release: OsRelease | None, name: str, package: InstalledDeb) -> str:
    """Return the purl of a package that dpkg lists; the system's release names the distribution."""
    vendor, codename = (release.id, release.codename) if release else ("debian", "")
    return _purl(
        f"deb/{quote(vendor, _PLAIN)}", name, package.version, {"arch": package.architecture, "distro": codename}
    )


def oci(repository: str, digest: str, platform: str) -> str:
    """Return the purl of an image by its digest; `repository` is its name with registry and path, or its last part
    alone.
    """
    place, _, name = repository.rpartition("/")
    architecture = platform.rpartition("/")[2]
    return _purl("oci", name.lower(), digest, {"arch": architecture, "repository_url": repository if place else None})


def git(name: str, version: str, url: str, commit: str) -> str:
    """Return the purl of a commit's tree."""
    return _purl("generic", name, version, {"vcs_url": f"git+{url}@{commit}"})


def generic(name: str, version: str, url: str, sha256: str) -> str:
    """Return the package URL of a file that is downloaded from an address."""
    return _purl("generic", name, version, {"download_url": url, "checksum": f"sha256:{sha256}"})


def _purl(kind: str, name: str, version: str, qualifiers: Mapping[str, str | None]) -> str:
    said = "&".join(f"{key}={quote(value, _PLAIN + '/')}" for key, value in sorted(qualifiers.items()) if value)
    return f"pkg:{kind}/{quote(name, _PLAIN)}@{quote(version, _PLAIN)}" + (f"?{said}" if said else "")


# The bill of materials: every wheel, Debian package and source of an image, with hashes and licences, as CycloneDX.
#
# A pure function of the lock, the image's digest, and the known licences of its packages: no clock, nothing random, and
# no version of imagegen, so that it is reproducible. Source: CycloneDX 1.6, ECMA-424.

_NAMESPACE = uuid.UUID("b3a1b9b6-70a6-5f37-9a7c-1c4f3d3b2f0e")  # of these documents alone
_OWN = "imagegen:"  # properties that are ours; CycloneDX leaves their names to who writes them

Component = dict[str, Any]


def sbom(lock: Lock, digest: str, known: KnownLicences) -> bytes:
    """The document about the image with this manifest digest, which the lock gave. Equal arguments, equal bytes."""
    root = _image(lock, digest)
    base = _base(lock, known.release)
    debs = _debs(lock, known)
    stacks = list(_stacks(lock, known))
    packages = {_ref(each): each for _, stack in stacks for each in stack.values()}
    support = _support(lock)
    own = [base, *_interpreter(lock), support, *_copies(lock)]
    components = [*own, *debs, *packages.values()]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, f'{digest} {contents_hash(lock)}')}",
        "metadata": {
            "timestamp": lock.as_of,
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{"type": "application", "name": "imagegen"}]},
            "component": root,
        },
        "components": sorted(components, key=lambda each: str(each["bom-ref"])),
        "dependencies": _dependencies(stacks, _ref(root), [_ref(each) for each in own], map(_ref, debs)),
    }
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _stacks(lock: Lock, known: KnownLicences) -> Iterator[tuple[Lock, dict[str, Component]]]:
    """Yield the lock of each environment with its distributions, by name.

    Where there are several environments, one that some of them share is one component, which names them. Two with one
    package URL and other bytes, as a patched wheel and its original, have references of their own.
    """
    found: dict[str, Component] = {}
    for environment in environments(lock):
        stack = {package.name: _package(environment.lock, package, known) for package in environment.lock.packages}
        for name, component in stack.items():
            if environment.name:
                there = found.get(_ref(component), component)
                if there.get("hashes") != component.get("hashes"):
                    there = component | {"bom-ref": f"{_ref(component)}#{environment.name}"}
                property_ = {"name": f"{_OWN}environment", "value": environment.name}
                stack[name] = there | {"properties": [*there.get("properties", ()), property_]}
                found[_ref(stack[name])] = stack[name]
        yield environment.lock, stack


def _ref(component: Component) -> str:
    return str(component["bom-ref"])


def _image(lock: Lock, digest: str) -> Component:
    return _component(
        "container",
        lock.image,
        digest,
        oci(lock.image, digest, lock.platform),
        sha256=digest.removeprefix("sha256:"),
        description=title(lock),
        properties={
            "cell": lock.cell,
            "inputs": inputs_hash(lock),
            **{
                f"environment:{environment.name}": f"{environment.lock.cell} at {environment.prefix}"
                for environment in environments(lock)
                if environment.name
            },
            **{f"axis:{name}": value for name, value in lock.axes.items()},
            **{f"override:{override.package}": f"{override}: {override.reason}" for override in lock.overrides},
            **{f"ldconfig:{each.path}": each.because for each in lock.ldconfig},
        },
    )


def _base(lock: Lock, release: OsRelease | None) -> Component:
    """The operating system, or the image that brings it."""
    base = lock.base
    if base.content and base.image:
        ref = oci(registry.parse(base.image).name, base.content.digest, lock.platform)
        sha256 = base.content.digest.removeprefix("sha256:")
        return _component(
            "container",
            base.image,
            base.content.digest,
            ref,
            sha256=sha256,
            properties={"system": f"{release.id} {release.version}".strip() if release else None},
        )
    number = data("debian")["releases"].get(base.suite, base.suite)
    archives = {f"archive:{name}": date for name, date in base.archives.items()}
    found = _component("operating-system", "debian", number, None, properties={"suite": base.suite, **archives})
    return {**found, "bom-ref": f"base:{base.name}"}


def _interpreter(lock: Lock) -> list[Component]:
    """Return a standalone interpreter as a component; one of the base's packages stands among these."""
    archive = lock.interpreter.file
    if archive is None:
        return []
    ref = generic("cpython", lock.interpreter.version, archive.url, archive.sha256)
    properties = {"release": f"python-build-standalone {lock.interpreter.release}", "file": archive.filename}
    licences = "its archive states none; CPython's own is PSF-2.0, and it contains other libraries"
    return [
        _component(
            "application",
            "cpython",
            lock.interpreter.version,
            ref,
            sha256=archive.sha256,
            licences=licences,
            properties=properties,
        )
    ]


def _support(lock: Lock) -> Component:
    """The programs that imagegen itself puts into an image: the entrypoint and the doctor."""
    version = lock.inputs.get("preflight", "")[:12]
    licence = Terms("Apache-2.0", declared=True)
    found = _component("application", "imagegen-preflight", version, None, licences=licence)
    return {**found, "bom-ref": "imagegen-preflight"}


def _copies(lock: Lock) -> list[Component]:
    """Return the files of the project that the image holds."""
    return [
        {
            **_component(
                "file",
                file.path,
                None,
                None,
                sha256=file.sha256,
                properties={"size": str(file.size), "source": copy.source, "because": copy.because},
            ),
            "bom-ref": f"file:{file.path}",
        }
        for copy in lock.copies
        for file in copy.files
    ]


def _debs(lock: Lock, known: KnownLicences) -> list[Component]:
    """The Debian packages: those of the lock; of a registry's image, those that dpkg has in the tree besides."""
    locked = [_locked_deb(each, lock.base.suite, known.debs.get(each.name)) for each in lock.debs]
    if lock.base.debs:
        return locked
    names = {each.name for each in lock.debs}
    return locked + [
        _component(
            "library",
            name,
            each.version,
            deb_of(known.release, name, each),
            licences=_deb_terms(each),
            properties={"source-package": f"{each.source} {each.source_version}"},
        )
        for name, each in known.debs.items()
        if name not in names
    ]


def _locked_deb(package: LockedDeb, suite: str | None, installed: InstalledDeb | None) -> Component:
    there = installed if installed and installed.version == package.version else None
    return _component(
        "library",
        package.name,
        package.version,
        deb(package, suite),
        sha256=package.sha256,
        licences=_deb_terms(there),
        properties={
            "size": str(package.size),
            "archive": package.archive,
            "path": package.path,
            "source-package": f"{there.source} {there.source_version}" if there else None,
        },
    )


def _deb_terms(package: InstalledDeb | None) -> Terms | str:
    if package is None:
        return "the base was not looked at"
    if package.licences is None:
        return "it has no copyright file"
    return of_deb(package.licences) if package.licences else "its copyright file is not machine-readable"


def _package(lock: Lock, package: LockedWheel | LockedBuild, known: KnownLicences) -> Component:
    """Return one distribution of the stack; a compiled one with its sources, and with its wheel if it was built."""
    wheel = package if isinstance(package, LockedWheel) else _built(lock, package)
    stated = known.wheels.get(wheel.file.sha256) if wheel else None
    unknown = "the wheel was not scanned" if stated is None else "its metadata states none"
    terms = of_wheel(stated) if stated else Terms()
    named: Terms | str = terms if terms.expression or terms.names else unknown
    build = package if isinstance(package, LockedBuild) else None
    file = wheel.file if wheel else None
    found = _component(
        "library",
        package.name,
        package.version,
        pypi(package.name, package.version, wheel.fetched if wheel else None),
        sha256=file.sha256 if file else None,
        licences=named,
        properties={
            "size": str(file.size) if file else None,
            "index": wheel.fetched.index
            if wheel and not (wheel.sdist or build)
            else None,  # none serves what is made here
            "because": package.because,
            "choice": package.choice,
            "build-key": build.key if build else None,
        },
    )
    if wheel and (url := wheel.fetched.url):
        found["externalReferences"] = [{"type": "distribution", "url": redact(url)}]
    if build:
        found["pedigree"] = _pedigree(build, build.source, build.git, build.submodules, build.patches)
    elif wheel and wheel.original:
        found["pedigree"] = _pedigree(wheel, wheel.original, None) | {
            "patches": [_patch(patch) for patch in wheel.patches]
        }
    elif wheel and wheel.sdist:
        found["pedigree"] = _pedigree(wheel, wheel.sdist.file, wheel.sdist.git)
    return found


def _patch(patch: WheelPatch) -> Component:
    found: Component = {"type": "unofficial", "diff": {"url": f"{patch.path}#sha256={patch.sha256}"}}
    reference = {"source": {"url": patch.source}} if patch.source else {}
    return found | {"resolves": [{"type": "defect", "description": patch.because, **reference}]}


def _built(lock: Lock, build: LockedBuild) -> LockedWheel | None:
    return next((wheel for wheel in lock.wheels if wheel.name == build.name), None)


def _pedigree(
    package: LockedWheel | LockedBuild,
    source: LockedFile,
    git: LockedGit | None,
    submodules: Iterable[Submodule] = (),
    patches: Iterable[LockedPatch] = (),
) -> Component:
    """Return the sources of a package: an sdist or a commit with its submodules, and the patches on top."""
    if git:
        own = _commit(package.name, package.version, git.url, git.commit, git.tree, source.sha256)
    else:
        own = _component("library", package.name, package.version, pypi(package.name, package.version, source))
        own["hashes"] = [{"alg": "SHA-256", "content": source.sha256}]
        own["bom-ref"] = f"source:{_ref(own)}"
    modules = [
        _commit(submodule.path, submodule.commit, submodule.url, submodule.commit, submodule.tree, None)
        for submodule in submodules
    ]
    found: Component = {"ancestors": [own, *modules]}
    if git:
        found["commits"] = [{"uid": git.commit, "url": redact(git.url)}]
    if there := [
        {"type": "unofficial", "diff": {"url": f"wheels/patches/{patch.filename}#sha256={patch.sha256}"}}
        for patch in patches
    ]:
        found["patches"] = there
    return found


def _commit(name: str, version: str, url: str, commit: str, tree: str, sha256: str | None) -> Component:
    """A commit's tree; `sha256` is of the archive that is packed of it."""
    ref = git(name.replace("/", "-"), version, redact(url), commit)
    found = _component(
        "library", name, version, ref, sha256=sha256, properties={"git-commit": commit, "git-tree": tree}
    )
    found["bom-ref"] = f"source:{ref}"
    found["externalReferences"] = [{"type": "vcs", "url": redact(url)}]
    return found


def _component(
    kind: str,
    name: str,
    version: str | None,
    ref: str | None,
    *,
    sha256: str | None = None,
    description: str | None = None,
    licences: Terms | str | None = None,
    properties: Mapping[str, str | None] | None = None,
) -> Component:
    """A component; `ref` is its package URL, `licences` a sentence where they are unknown."""
    values = dict(properties or {})
    if isinstance(licences, str):
        values["licence"] = f"unknown: {licences}"
    found: Component = {
        "type": kind,
        "bom-ref": ref,
        "name": name,
        "version": version,
        "purl": ref,
        "description": description,
        "hashes": [{"alg": "SHA-256", "content": sha256}] if sha256 else None,
        "licenses": _licences(licences) if isinstance(licences, Terms) else None,
        "properties": [{"name": _OWN + key, "value": value} for key, value in sorted(values.items()) if value] or None,
    }
    return {key: value for key, value in found.items() if value}


def _licences(terms: Terms) -> list[Component]:
    how = "declared" if terms.declared else "concluded"
    if terms.expression:
        return [{"expression": terms.expression, "acknowledgement": how}]
    named: list[Component] = [{"license": {"name": name, "acknowledgement": how}} for name in terms.names]
    if terms.text:
        named[0]["license"]["text"] = {"contentType": "text/plain", "content": terms.text}
    return named


def _dependencies(
    stacks: Sequence[tuple[Lock, Mapping[str, Component]]], root: str, own: Sequence[str], debs: Iterable[str]
) -> list[Component]:
    """Return which component needs which: the image its `own`, base first, and the stacks; the base its `debs`."""
    requested: dict[str, list[str]] = {_ref(each): [] for _, stack in stacks for each in stack.values()}
    requested |= {root: list(own), **{ref: [] for ref in own}, own[0]: sorted(debs)}
    requested |= {ref: [] for ref in requested[own[0]]}
    for package, stack in ((package, stack) for lock, stack in stacks for package in lock.packages):
        askers = [_ref(stack[name]) for name in package.via if name in stack]
        if package.because or not askers:
            askers.append(root)
        for requester in askers:
            requested[requester].append(_ref(stack[package.name]))
    return [{"ref": ref, "dependsOn": sorted(set(required))} for ref, required in sorted(requested.items())]
