"""Check each document attached to an image against the image and its lock. Pure.

Sources: CycloneDX 1.6; SLSA provenance v1 (resolvedDependencies); in-toto test-result v0.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from imagegen.core.data import parse_json
from imagegen.core.errors import FetchError, TrustError
from imagegen.core.net import UnavailableError
from imagegen.core.oci import Artifact, digest_of
from imagegen.core.registry import Referrer
from imagegen.core.text import counted
from imagegen.image.layers.image import read_description
from imagegen.plan.lock import inputs_hash
from imagegen.plan.lock.environments import environments
from imagegen.plan.lock.model import Lock
from imagegen.run import numerics
from imagegen.supply.compare import contents
from imagegen.supply.compare.contents import ImageVerdict, ReadImage, StepResult, StepStatus, failed, passed
from imagegen.supply.trust.attach import VerificationResult
from imagegen.supply.trust.documents import (
    AUDIT,
    BUNDLE,
    FACTS,
    KINDS,
    LAYERS,
    LOCK,
    NUMERICS,
    PROVENANCE,
    SBOM,
    SIGNATURE,
    SMOKE,
    Attached,
    Document,
    Kind,
)
from imagegen.supply.trust.licences import KnownLicences
from imagegen.supply.trust.sbom import sbom

# Properties that come from the packages and the base, not from the lock.
_NOT_IN_LOCK = ("imagegen:licence", "imagegen:source-package", "imagegen:system")
_MAX_NAMED = 3  # findings of an audit
_OF_WHEEL = ("imagegen:size", "imagegen:index")


class _MismatchError(Exception):
    """A contradiction between a document and the image or its lock."""


def attachment_step(
    title: str, document: Document, image: ReadImage, lock: Lock | None, locks: Sequence[str]
) -> StepResult:
    """Check that the document is about this image and correct; `locks` are digests of attached locks."""
    try:
        predicate = parse_json(document.content)
        return _READERS[document.kind.name](title, predicate, image, lock, locks)
    except (_MismatchError, ValueError, RecursionError) as error:
        return failed(title, str(error))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        return failed(title, f"its format is invalid: {type(error).__name__} {error}")


def _layers(
    title: str, predicate: dict[str, Any], image: ReadImage, lock: Lock | None, locks: Sequence[str]
) -> StepResult:
    if predicate["lock"] not in locks:
        raise _MismatchError(f"it names the lock {predicate['lock']}, and {', '.join(locks) or 'no lock'} is attached")
    if lock and predicate["inputs"] != inputs_hash(lock):
        raise _MismatchError(f"its inputs are {predicate['inputs']}, and the lock's {inputs_hash(lock)}")
    listed = {item["name"]: item["diff_id"] for item in predicate["layers"]}
    diff_ids = dict(zip(image.names, (layer.diff_id for layer in image.layers), strict=True))
    for name, diff_id in diff_ids.items():
        if listed.get(name, diff_id) != diff_id:
            raise _MismatchError(f"it lists layer {name} with diff_id {listed[name]}, and the image has {diff_id}")
    return passed(title, f"{counted(len(listed), 'layer')}, for the attached lock")


def _sbom(title: str, predicate: dict[str, Any], image: ReadImage, lock: Lock | None, _: Sequence[str]) -> StepResult:
    if lock is None:
        return StepResult(title, StepStatus.UNCHECKED, "there is no lock to compare it with")
    compiled = {build.name for environment in environments(lock) for build in environment.lock.builds}
    required = parse_json(sbom(lock, image.digest, KnownLicences()))
    debs = lock.base.content is None  # a lock does not list the Debian packages of a registry base
    expected, attached = (_comparable(bom, compiled, debs=debs) for bom in (required, predicate))
    if expected == attached:
        hashes = f"; the wheels of {', '.join(sorted(compiled))} have their own hashes" if compiled else ""
        return passed(title, f"{counted(len(predicate['components']), 'component')}, equal to the lock's{hashes}")
    raise _MismatchError(_first_mismatch(expected, attached))


def _comparable(document: dict[str, Any], compiled: set[str], *, debs: bool) -> dict[str, Any]:
    """Return the parts of a bill of materials that a lock decides, without licences and hashes of compiled wheels."""
    components = {}
    for component in document["components"]:
        if not debs and str(component.get("purl", "")).startswith("pkg:deb/"):
            continue
        undecided = (*_NOT_IN_LOCK, *_OF_WHEEL) if component["name"] in compiled else _NOT_IN_LOCK
        fields = {key: value for key, value in component.items() if key not in ("licenses", "properties")}
        fields["properties"] = [pair for pair in component.get("properties", ()) if pair["name"] not in undecided]
        if component["name"] in compiled:
            fields = {key: value for key, value in fields.items() if key not in ("hashes", "bom-ref", "purl")}
        components[f"{component['name']} {component.get('version', '')} {component['type']}"] = fields
    about = {key: value for key, value in document.items() if key not in ("components", "dependencies", "serialNumber")}
    dependencies = document["dependencies"] if debs and not compiled else []
    serial = None if compiled else document["serialNumber"]
    return {"components": components, "about": about, "dependencies": dependencies, "serialNumber": serial}


def _first_mismatch(required: dict[str, Any], predicate: dict[str, Any]) -> str:
    """Describe the first difference between the attached bill of materials and the lock's."""
    attached, expected = predicate["components"], required["components"]
    for name in sorted(expected.keys() | attached.keys()):
        if name not in attached:
            return f"it lacks {name}"
        if name not in expected:
            return f"it has {name}, which the lock does not have"
        if expected[name] != attached[name]:
            keys = expected[name].keys() | attached[name].keys()
            different = sorted(key for key in keys if expected[name].get(key) != attached[name].get(key))
            return f"{name}: its {', '.join(different)} differ from the lock's"
    different = [key for key in ("about", "dependencies", "serialNumber") if required[key] != predicate[key]]
    return f"its {', '.join(different)} differ from the lock's"


def _provenance(
    title: str, predicate: dict[str, Any], _: ReadImage, lock: Lock | None, locks: Sequence[str]
) -> StepResult:
    definition = predicate["buildDefinition"]
    texts = set(_texts(definition))
    digests = [*locks, *([inputs_hash(lock)] if lock else [])]
    if not any(digest in texts or digest.removeprefix("sha256:") in texts for digest in digests):
        raise _MismatchError("it does not name the attached lock")
    builder = predicate.get("runDetails", {}).get("builder", {}).get("id", "an unnamed builder")
    return passed(title, f"for the attached lock, by {builder}")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _smoke(title: str, predicate: dict[str, Any], image: ReadImage, _: Lock | None, __: Sequence[str]) -> StepResult:
    details = predicate["imagegen"]
    if details["image"] != image.digest:
        raise _MismatchError(f"it is for {details['image']}, and this image is {image.digest}")
    if predicate["result"] != "PASSED" or details["report"]["passed"] is not True or predicate["failedTests"]:
        raise _MismatchError(f"it did not pass: {', '.join(map(str, predicate['failedTests'])) or predicate['result']}")
    return passed(
        title,
        f"{counted(len(predicate['passedTests']), 'check')} passed, {'with' if details['gpu'] else 'without'} a GPU",
    )


def _audit(title: str, predicate: dict[str, Any], _: ReadImage, lock: Lock | None, __: Sequence[str]) -> StepResult:
    if lock and predicate["subject"] != lock.cell:
        raise _MismatchError(f"it is for {predicate['subject']}, and this image is {lock.cell}")
    errors = [
        f"{finding['id']} {finding['package'] or ''}".strip()
        for finding in predicate["findings"]
        if finding["severity"] == "error"
    ]
    if errors or predicate["passed"] is not True:
        raise _MismatchError(f"it reports {counted(len(errors), 'error')}: {', '.join(errors[:_MAX_NAMED])}")
    return passed(
        title, f"no errors, {counted(predicate['counts']['warning'], 'warning')}, {predicate['packages']} packages"
    )


def _numerics(title: str, content: dict[str, Any], image: ReadImage, _: Lock | None, __: Sequence[str]) -> StepResult:
    devices = [fingerprint.device for fingerprint in numerics.read_attached(content, image.digest)]
    return passed(title, f"measured on {' and '.join(devices)}")


_READERS: dict[str, Callable[[str, dict[str, Any], ReadImage, Lock | None, Sequence[str]], StepResult]] = {
    LAYERS.name: _layers,
    SBOM.name: _sbom,
    PROVENANCE.name: _provenance,
    SMOKE.name: _smoke,
    AUDIT.name: _audit,
    NUMERICS.name: _numerics,
}


# Verify that an image matches its lock, using only the artifacts in its registry.
#
# Each artifact gives a step, and each fault is named. `contents` checks the image's bytes; this module checks the
# attached lock, bill of materials, provenance, reports, and signatures. `app.comparison` has the order of the steps.

_PREDICATE = "dev.sigstore.bundle.predicateType"  # annotation of a bundle, as cosign writes it
_ORDER = (LAYERS, SBOM, PROVENANCE, SMOKE, AUDIT, NUMERICS)
_TITLES = {LOCK: "lock", LAYERS: "layers' list", SBOM: "SBOM", PROVENANCE: "provenance", SMOKE: "smoke report"}
_TITLES |= {AUDIT: "audit", NUMERICS: "numerical results"}
_ATTESTATION = "attestation of the "


@dataclass(frozen=True)
class VerifiedImage:
    """The verdict, with the image and its lock for a rebuild if they could be read.

    `signer` is trusted, signed the image, and attests this lock. For an index, `platforms` has the image of each
    platform.
    """

    verdict: ImageVerdict
    image: ReadImage | None
    lock: Lock | None
    signer: str | None = None
    platforms: Mapping[str, VerifiedImage] = field(default_factory=dict)


@dataclass(frozen=True)
class Attachments:
    """The referrers of an image in its registry, and their verification."""

    referrers: Sequence[Referrer]
    artifact: Callable[[Referrer], Artifact]  # its manifest
    result: VerificationResult
    required: bool  # whether the project or the user requires a trusted signer
    no_signer: str  # subject of a verdict without a trusted signature, as "no signer that the project names"


@dataclass(frozen=True)
class VerificationOptions:
    """The user's requirements on an image, in addition to its lock.

    `cell` is the id of the required cell; an index must have an image of it. Without `cell`, `contradiction` returns
    why the reference does not fit the locks; None if it fits, or if a layout has no name. With `signature`, an unsigned
    image fails even if no signer is trusted.
    """

    cell: str | None = None
    contradiction: Callable[[Sequence[Lock]], str | None] | None = None
    signature: bool = False


def verify_attachments(
    image: ReadImage, attachments: Attachments, options: VerificationOptions
) -> tuple[Lock | None, str | None, list[StepResult]]:
    """Check the artifacts that are attached to an image against the image.

    Return its lock if one can be read, the signer as in `VerifiedImage`, and the steps.

    Raises UnavailableError.
    """
    digests = {document.digest for document in attachments.result.documents}
    faults = [error for error in attachments.result.faults if str(error.where) not in digests]
    steps = [_fault(error.where, error.what, error.why, attachments.referrers) for error in faults]
    by_kind: Mapping[Kind, list[Attached]] = {
        kind: [document for document in attachments.result.documents if document.document.kind is kind]
        for kind in KINDS.values()
    }
    lock = signer = None
    for attached in by_kind[LOCK]:
        attached_lock, step = contents.read_lock(image, attached.document.content)
        if lock is None and attached_lock:
            lock, signer = attached_lock, attached.signer if attachments.result.signers else None
        steps.append(_attested(step, attached, attachments))
    if not by_kind[LOCK]:
        steps.append(failed("lock", "no lock is attached, so the image cannot be checked against it"))
    if lock:
        steps += _name([lock], options)
        steps.append(contents.image_step(image, lock))
    lock_digests = [digest_of(attached.document.content) for attached in by_kind[LOCK]]
    steps += _signature(attachments, options)
    for kind in _ORDER:
        title = _TITLES[kind]
        for attached in by_kind[kind]:
            step = attachment_step(title, attached.document, image, lock, lock_digests)
            steps.append(_attested(step, attached, attachments))
        if not by_kind[kind] and not any(step.name == title for step in steps):
            steps.append(StepResult(title, StepStatus.ABSENT, "not attached"))
    steps += _wheel_scans(attachments, by_kind[LAYERS])
    return lock, signer, sorted(steps, key=lambda step: _rank(step.name))


def verify_index(
    locks: Mapping[str, Lock | None], attachments: Attachments, options: VerificationOptions
) -> list[StepResult]:
    """Check that the attached `locks` of an index's images differ only in the platform, and who signed the index."""
    steps = [_fault(error.where, error.what, error.why, attachments.referrers) for error in attachments.result.faults]
    read_locks = {platform: lock for platform, lock in locks.items() if lock}
    cells = {(lock.image, *sorted({**lock.axes, "platform": ""}.items())) for lock in read_locks.values()}
    other = [platform for platform, lock in read_locks.items() if lock.platform != platform]
    names = ", ".join(f"{platform}: {lock.cell}" for platform, lock in read_locks.items())
    if len(cells) > 1:
        steps.append(failed("platforms", f"the images differ in more than the platform: {names}"))
    elif other:
        steps.append(failed("platforms", f"the image for {other[0]} has a lock for another platform: {names}"))
    elif read_locks:
        steps.append(passed("platforms", names))
    if read_locks:
        steps += _name(list(read_locks.values()), options)
    return [*steps, *_signature(attachments, options, "index")]


def _wheel_scans(attachments: Attachments, layers: Sequence[Attached]) -> Iterator[StepResult]:
    """Yield whether the layers' list and the list of wheel scans have the same digests. Scans are not read."""
    scan_digests: dict[str, str] = {}
    for layer in layers:
        if layer.signer or not attachments.required:
            with suppress(TrustError):  # other formats do not name scans
                scan_digests |= read_description(layer.document.content).facts
    artifacts = [artifact for artifact in attachments.referrers if artifact.artifact_type == FACTS]
    attached_keys: set[str] = set()
    for referrer in artifacts:
        try:
            listed = {key: blob.digest for key, blob in attachments.artifact(referrer).parts}
        except UnavailableError:
            raise
        except FetchError as error:
            yield _fault(referrer.digest, error.what, error.why, attachments.referrers)
            return
        if conflicting := sorted(
            key for key in scan_digests.keys() & listed.keys() if scan_digests[key] != listed[key]
        ):
            key = conflicting[0]
            why = f"it lists {listed[key]} under {key}, and the layers' list names {scan_digests[key]}"
            yield failed("facts", f"{referrer.digest}: {why}")
            return
        attached_keys |= listed.keys()
    if lost := sorted(scan_digests.keys() - attached_keys):
        outcome = StepStatus.FAIL if artifacts else StepStatus.ABSENT
        yield StepResult(
            "facts", outcome, f"{len(lost)} of the {len(scan_digests)} that the layers' list names are not attached"
        )
    elif artifacts:
        yield passed("facts", f"{len(scan_digests)}, attached with the digests that the layers' list names")


def _fault(where: object, summary: str, why: str | None, referrers: Sequence[Referrer]) -> StepResult:
    """Return the step of an invalid artifact, with the title of its kind if it is a referrer."""
    referrer = next((item for item in referrers if item.digest == str(where)), None)
    evidence = ": ".join(part for part in (str(where) if where else None, summary, why) if part)
    return failed(_title(referrer) if referrer else "attachments", evidence)


def _rank(name: str) -> int:
    """Return the position of a step in a verdict. An attestation is next to the artifact that it attests."""
    steps = ["lock", "name", "image", "signature", *(_TITLES[kind] for kind in _ORDER), "facts"]
    about = name.removeprefix(_ATTESTATION)
    return steps.index(about) if about in steps else len(steps)


def _title(referrer: Referrer) -> str:
    if referrer.artifact_type == BUNDLE:
        predicate = referrer.annotations.get(_PREDICATE)
        if predicate == SIGNATURE:
            return "signature"
        about = next((title for kind, title in _TITLES.items() if kind.predicate == predicate), "something")
        return f"{_ATTESTATION}{about}"
    titles = {kind.media_type: title for kind, title in _TITLES.items()} | {FACTS: "facts"}
    return titles.get(referrer.artifact_type, "attachments")


def _attested(step: StepResult, attached: Attached, attachments: Attachments) -> StepResult:
    """Return the step of a document. It fails if a required signature is missing, or the document was replaced."""
    for fault in attachments.result.faults:
        if str(fault.where) == attached.digest:
            evidence = _fault(fault.where, fault.what, fault.why, attachments.referrers).evidence
            return failed(step.name, evidence if step.outcome is StepStatus.PASS else f"{evidence}; {step.evidence}")
    if step.outcome is not StepStatus.PASS:
        return step
    if attached.signer:
        return passed(step.name, f"{step.evidence}; attested by {attached.signer}")
    if attachments.required:
        return failed(step.name, f"{attached.digest}: {attachments.no_signer} attests it")
    return step


def _name(locks: Sequence[Lock], options: VerificationOptions) -> Iterator[StepResult]:
    """Yield whether the image is of the required cell, or of a cell that may have the reference's name."""
    cells = [lock.cell for lock in locks]
    lock_cells = " and ".join(cells)
    if options.cell is not None:
        verdict = passed if options.cell in cells else failed
        yield verdict("name", f"the image is of {lock_cells}, and --cell requires {options.cell!r}")
    elif options.contradiction:
        why = options.contradiction(locks)
        yield failed("name", f"the image is of {lock_cells}: {why}") if why else passed("name", f"fits {lock_cells}")


def _signature(attachments: Attachments, options: VerificationOptions, noun: str = "image") -> Iterator[StepResult]:
    untrusted_count = attachments.result.untrusted
    untrusted = f" ({counted(untrusted_count, 'signature')} of other signers)" if untrusted_count else ""
    if attachments.result.signers:
        yield passed("signature", f"signed by {', '.join(attachments.result.signers)}")
    elif attachments.required:
        yield failed("signature", f"{attachments.no_signer} has signed this {noun}{untrusted}")
    elif options.signature:
        yield failed("signature", f"a signature is required, but the project names no key and no identity{untrusted}")
    else:
        yield StepResult("signature", StepStatus.UNCHECKED, f"the project names no key{untrusted}")
