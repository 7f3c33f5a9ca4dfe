"""Verify that an image matches its lock, using only the artifacts in its registry.

Each artifact gives a step, and each fault is named. `image_bytes` checks the image's bytes; this module checks the
attached lock, bill of materials, provenance, reports, and signatures. `app.comparison` has the order of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from imagegen.compare import image_bytes
from imagegen.compare.attachment_checks import attachment_step
from imagegen.compare.image_bytes import ReadImage
from imagegen.compare.verdict import ImageVerdict, StepResult, StepStatus, failed, passed
from imagegen.core.errors import FetchError, TrustError
from imagegen.core.net import UnavailableError
from imagegen.core.text import counted
from imagegen.image.layers.layers_document import read_description
from imagegen.lock.model import Lock
from imagegen.oci.documents import Artifact, digest_of
from imagegen.oci.registry import Referrer
from imagegen.trust.attach import VerificationResult
from imagegen.trust.documents import (
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
    Kind,
)

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
        attached_lock, step = image_bytes.read_lock(image, attached.document.content)
        if lock is None and attached_lock:
            lock, signer = attached_lock, attached.signer if attachments.result.signers else None
        steps.append(_attested(step, attached, attachments))
    if not by_kind[LOCK]:
        steps.append(failed("lock", "no lock is attached, so the image cannot be checked against it"))
    if lock:
        steps += _name([lock], options)
        steps.append(image_bytes.image_step(image, lock))
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
