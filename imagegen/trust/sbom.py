"""Write the bill of materials of an image as CycloneDX.

It has each wheel, Debian package and source of an image with hashes and licences. It is a pure function of the lock,
the image's digest, and the known licences of its packages. It has no time, no random value and no version of imagegen,
so that it is reproducible. Source: CycloneDX 1.6, ECMA-424.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from imagegen.audit.model import InstalledDeb, OsRelease
from imagegen.core.text import redact
from imagegen.lock import contents_hash, inputs_hash
from imagegen.lock.foundation import LockedDeb
from imagegen.lock.main_versions import title
from imagegen.lock.model import Lock, LockedBuild, LockedPatch, LockedWheel, WheelPatch
from imagegen.oci import registry
from imagegen.trust.licences import KnownLicences, Terms, data, deb_terms, wheel_terms
from imagegen.trust.package_url import deb, deb_of, generic, git, oci, pypi

_NAMESPACE = uuid.UUID("b3a1b9b6-70a6-5f37-9a7c-1c4f3d3b2f0e")  # only of these documents
_PREFIX = "imagegen:"  # of the names of properties, which CycloneDX does not define
Component = dict[str, Any]


def sbom(lock: Lock, digest: str, licences: KnownLicences) -> bytes:
    """Return the document for the lock's image with this manifest digest. Equal arguments give equal bytes."""
    root = _image(lock, digest)
    base = _base(lock, licences.release)
    debs = _debs(lock, licences)
    stacks = list(_stacks(lock, licences))
    packages = {_ref(package): package for _, stack in stacks for package in stack.values()}
    support = _support(lock)
    upper = [base, *_interpreter(lock), support, *_copies(lock)]
    components = [*upper, *debs, *packages.values()]
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
        "components": sorted(components, key=lambda component: str(component["bom-ref"])),
        "dependencies": _dependencies(stacks, _ref(root), [_ref(component) for component in upper], map(_ref, debs)),
    }
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _stacks(lock: Lock, licences: KnownLicences) -> Iterator[tuple[Lock, dict[str, Component]]]:
    """Yield the lock of each environment with its distributions, by name.

    If several environments share a distribution, it is one component that names them. Components with one package URL
    and other bytes, such as a patched wheel and its original, have different references.
    """
    shared: dict[str, Component] = {}
    for environment in lock.environments:
        stack = {package.name: _package(environment.lock, package, licences) for package in environment.lock.packages}
        for name, component in stack.items():
            if environment.name:
                shared_component = shared.get(_ref(component), component)
                if shared_component.get("hashes") != component.get("hashes"):
                    shared_component = component | {"bom-ref": f"{_ref(component)}#{environment.name}"}
                property_ = {"name": f"{_PREFIX}environment", "value": environment.name}
                stack[name] = shared_component | {"properties": [*shared_component.get("properties", ()), property_]}
                shared[_ref(stack[name])] = stack[name]
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
                for environment in lock.environments
                if environment.name
            },
            **{f"axis:{name}": value for name, value in lock.axes.items()},
            **{f"override:{override.package}": f"{override}: {override.reason}" for override in lock.overrides},
            **{f"ldconfig:{directory.path}": directory.because for directory in lock.ldconfig},
        },
    )


def _base(lock: Lock, release: OsRelease | None) -> Component:
    """Return the operating system, or the base image that has it."""
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
    properties = {"suite": base.suite, **archives}
    return _component("operating-system", "debian", number, None, ref=f"base:{base.name}", properties=properties)


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
    """Return the programs that imagegen adds to an image, which are the entrypoint and the doctor."""
    version = lock.inputs.get("preflight", "")[:12]
    licence = Terms("Apache-2.0", declared=True)
    return _component("application", "imagegen-preflight", version, None, ref="imagegen-preflight", licences=licence)


def _copies(lock: Lock) -> list[Component]:
    """Return the files of the project in the image."""
    return [
        _component(
            "file",
            file.path,
            None,
            None,
            ref=f"file:{file.path}",
            sha256=file.sha256,
            properties={"size": str(file.size), "source": copy.source, "because": copy.because},
        )
        for copy in lock.copies
        for file in copy.files
    ]


def _debs(lock: Lock, licences: KnownLicences) -> list[Component]:
    """Return the Debian packages of the lock, and of a registry base the other packages in dpkg's database."""
    locked = [_locked_deb(package, lock.base.suite, licences.debs.get(package.name)) for package in lock.debs]
    if lock.base.debs:
        return locked
    names = {package.name for package in lock.debs}
    return locked + [
        _component(
            "library",
            name,
            installed.version,
            deb_of(licences.release, name, installed),
            licences=_deb_terms(installed),
            properties={"source-package": f"{installed.source} {installed.source_version}"},
        )
        for name, installed in licences.debs.items()
        if name not in names
    ]


def _locked_deb(package: LockedDeb, suite: str | None, installed: InstalledDeb | None) -> Component:
    matching = installed if installed and installed.version == package.version else None
    return _component(
        "library",
        package.name,
        package.version,
        deb(package, suite),
        sha256=package.sha256,
        licences=_deb_terms(matching),
        properties={
            "size": str(package.size),
            "archive": package.archive,
            "path": package.path,
            "source-package": f"{matching.source} {matching.source_version}" if matching else None,
        },
    )


def _deb_terms(package: InstalledDeb | None) -> Terms | str:
    if package is None:
        return "the base was not looked at"
    if package.licences is None:
        return "it has no copyright file"
    return deb_terms(package.licences) if package.licences else "its copyright file is not machine-readable"


def _package(lock: Lock, package: LockedWheel | LockedBuild, licences: KnownLicences) -> Component:
    """Return a distribution. A compiled one has its sources, and its wheel if it was built."""
    wheel = (
        package
        if isinstance(package, LockedWheel)
        else next((wheel for wheel in lock.wheels if wheel.name == package.name), None)
    )
    stated = licences.wheels.get(wheel.file.sha256) if wheel else None
    unknown = "the wheel was not scanned" if stated is None else "its metadata states none"
    terms = wheel_terms(stated) if stated else Terms()
    licence: Terms | str = terms if terms.expression or terms.names else unknown
    build = package if isinstance(package, LockedBuild) else None
    file = wheel.file if wheel else None
    component = _component(
        "library",
        package.name,
        package.version,
        pypi(package.name, package.version, wheel.fetched if wheel else None),
        sha256=file.sha256 if file else None,
        licences=licence,
        properties={
            "size": str(file.size) if file else None,
            "index": wheel.fetched.index
            if wheel and not (wheel.sdist or build)
            else None,  # no index has a compiled wheel
            "because": package.because,
            "choice": package.choice,
            "build-key": build.key if build else None,
        },
    )
    if wheel and (url := wheel.fetched.url):
        component["externalReferences"] = [{"type": "distribution", "url": redact(url)}]
    if build or (wheel and wheel.source != wheel.file):
        component["pedigree"] = _pedigree(package)
    return component


def _patch(patch: WheelPatch | LockedPatch) -> Component:
    if isinstance(patch, LockedPatch):
        return {"type": "unofficial", "diff": {"url": f"wheels/patches/{patch.filename}#sha256={patch.sha256}"}}
    entry: Component = {"type": "unofficial", "diff": {"url": f"{patch.path}#sha256={patch.sha256}"}}
    reference = {"source": {"url": patch.source}} if patch.source else {}
    return entry | {"resolves": [{"type": "defect", "description": patch.because, **reference}]}


def _pedigree(package: LockedWheel | LockedBuild) -> Component:
    """Return the sources of a package: an sdist or a commit with its submodules, and the patches on top."""
    source, git = package.source, package.git
    if git:
        origin = _commit(package.name, package.version, git.url, git.commit, git.tree, source.sha256)
    else:
        purl = pypi(package.name, package.version, source)
        name, version, sha256 = package.name, package.version, source.sha256
        origin = _component("library", name, version, purl, ref=f"source:{purl}", sha256=sha256)
    modules = [
        _commit(submodule.path, submodule.commit, submodule.url, submodule.commit, submodule.tree, None)
        for submodule in (package.submodules if isinstance(package, LockedBuild) else ())
    ]
    pedigree: Component = {"ancestors": [origin, *modules]}
    if git:
        pedigree["commits"] = [{"uid": git.commit, "url": redact(git.url)}]
    if package.patches:
        pedigree["patches"] = [_patch(patch) for patch in package.patches]
    return pedigree


def _commit(name: str, version: str, url: str, commit: str, tree: str, sha256: str | None) -> Component:
    """Return a commit's tree; `sha256` is the hash of its archive."""
    purl = git(name.replace("/", "-"), version, redact(url), commit)
    properties = {"git-commit": commit, "git-tree": tree}
    component = _component("library", name, version, purl, ref=f"source:{purl}", sha256=sha256, properties=properties)
    component["externalReferences"] = [{"type": "vcs", "url": redact(url)}]
    return component


def _component(
    kind: str,
    name: str,
    version: str | None,
    purl: str | None,
    *,
    ref: str | None = None,
    sha256: str | None = None,
    description: str | None = None,
    licences: Terms | str | None = None,
    properties: Mapping[str, str | None] | None = None,
) -> Component:
    """Return a component. `ref` is its package URL by default; `licences` is a sentence if they are unknown."""
    values = dict(properties or {})
    if isinstance(licences, str):
        values["licence"] = f"unknown: {licences}"
    component: Component = {
        "type": kind,
        "bom-ref": ref or purl,
        "name": name,
        "version": version,
        "purl": purl,
        "description": description,
        "hashes": [{"alg": "SHA-256", "content": sha256}] if sha256 else None,
        "licenses": _licences(licences) if isinstance(licences, Terms) else None,
        "properties": [{"name": _PREFIX + key, "value": value} for key, value in sorted(values.items()) if value]
        or None,
    }
    return {key: value for key, value in component.items() if value}


def _licences(terms: Terms) -> list[Component]:
    how = "declared" if terms.declared else "concluded"
    if terms.expression:
        return [{"expression": terms.expression, "acknowledgement": how}]
    names: list[Component] = [{"license": {"name": name, "acknowledgement": how}} for name in terms.names]
    if terms.text:
        names[0]["license"]["text"] = {"contentType": "text/plain", "content": terms.text}
    return names


def _dependencies(
    stacks: Sequence[tuple[Lock, Mapping[str, Component]]], root: str, direct: Sequence[str], debs: Iterable[str]
) -> list[Component]:
    """Return the dependencies of each component.

    The image depends on its `direct` components (the base is the first) and on the stacks, the base on its `debs`.
    """
    dependencies: dict[str, list[str]] = {_ref(component): [] for _, stack in stacks for component in stack.values()}
    dependencies |= {root: list(direct), **{ref: [] for ref in direct}, direct[0]: sorted(debs)}
    dependencies |= {ref: [] for ref in dependencies[direct[0]]}
    for package, stack in ((package, stack) for lock, stack in stacks for package in lock.packages):
        dependents = [_ref(stack[name]) for name in package.via if name in stack]
        if package.because or not dependents:
            dependents.append(root)
        for dependent in dependents:
            dependencies[dependent].append(_ref(stack[package.name]))
    return [{"ref": ref, "dependsOn": sorted(set(required))} for ref, required in sorted(dependencies.items())]
