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

# Said by the packages themselves and by the base, not by the lock.
_UNKNOWN_HERE = ("imagegen:licence", "imagegen:source-package", "imagegen:system")
_NAMED = 3  # findings of an audit
_OF_WHEEL = ("imagegen:size", "imagegen:index")


class _Wrong(Exception):
    """A contradiction between a document and the image or its lock."""


def attachment_step(
    title: str, document: Document, found: ReadImage, lock: Lock | None, locks: Sequence[str]
) -> StepResult:
    """Check that the document is about this image and correct; `locks` are digests of attached locks."""
    try:
        predicate = parse_json(document.content)
        return _READERS[document.kind.name](title, predicate, found, lock, locks)
    except (_Wrong, ValueError, RecursionError) as error:
        return failed(title, str(error))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        return failed(title, f"it has not the form of one: {type(error).__name__} {error}")


def _layers(
    title: str, predicate: dict[str, Any], found: ReadImage, lock: Lock | None, locks: Sequence[str]
) -> StepResult:
    if predicate["lock"] not in locks:
        raise _Wrong(f"it is of the lock {predicate['lock']}, and attached is {', '.join(locks) or 'none'}")
    if lock and predicate["inputs"] != inputs_hash(lock):
        raise _Wrong(f"its inputs are {predicate['inputs']}, and the lock's {inputs_hash(lock)}")
    listed = {each["name"]: each["diff_id"] for each in predicate["layers"]}
    there = dict(zip(found.names, (layer.diff_id for layer in found.layers), strict=True))
    for name, diff_id in there.items():
        if listed.get(name, diff_id) != diff_id:
            raise _Wrong(f"it says that layer {name} unpacks to {listed[name]}, and it is {diff_id}")
    return passed(title, f"{counted(len(listed), 'layer')}, of the attached lock")


def _sbom(title: str, predicate: dict[str, Any], found: ReadImage, lock: Lock | None, _: Sequence[str]) -> StepResult:
    if lock is None:
        return StepResult(title, StepStatus.UNCHECKED, "there is no lock to hold it to")
    compiled = {build.name for environment in environments(lock) for build in environment.lock.builds}
    required = parse_json(sbom(lock, found.digest, KnownLicences()))
    whole = lock.base.content is None  # else the Debian packages of a registry's image are not the lock's to say
    one, other = (_comparable(each, compiled, whole=whole) for each in (required, predicate))
    if one == other:
        more = f"; the wheels of {', '.join(sorted(compiled))} have their own hashes" if compiled else ""
        return passed(title, f"{counted(len(predicate['components']), 'component')}, what the lock gives{more}")
    raise _Wrong(_first(one, other))


def _comparable(document: dict[str, Any], compiled: set[str], *, whole: bool) -> dict[str, Any]:
    """Return the parts of a bill of materials that a lock decides: no licences, and no hashes of compiled wheels."""
    components = {}
    for each in document["components"]:
        if not whole and str(each.get("purl", "")).startswith("pkg:deb/"):
            continue
        left = (*_UNKNOWN_HERE, *_OF_WHEEL) if each["name"] in compiled else _UNKNOWN_HERE
        kept = {key: value for key, value in each.items() if key not in ("licenses", "properties")}
        kept["properties"] = [pair for pair in each.get("properties", ()) if pair["name"] not in left]
        if each["name"] in compiled:
            kept = {key: value for key, value in kept.items() if key not in ("hashes", "bom-ref", "purl")}
        components[f"{each['name']} {each.get('version', '')} {each['type']}"] = kept
    rest = {key: value for key, value in document.items() if key not in ("components", "dependencies", "serialNumber")}
    kept_edges = document["dependencies"] if whole and not compiled else []
    serial = None if compiled else document["serialNumber"]
    return {"components": components, "about": rest, "dependencies": kept_edges, "serialNumber": serial}


def _first(required: dict[str, Any], predicate: dict[str, Any]) -> str:
    """Return the first difference between an attached bill of materials and the one that the lock gives."""
    there, own = predicate["components"], required["components"]
    for name in sorted(own.keys() | there.keys()):
        if name not in there:
            return f"it lacks {name}"
        if name not in own:
            return f"it has {name}, which the lock does not have"
        if own[name] != there[name]:
            keys = sorted(
                key for key in own[name].keys() | there[name].keys() if own[name].get(key) != there[name].get(key)
            )
            return f"{name}: its {', '.join(keys)} are not those of the lock"
    other = [key for key in ("about", "dependencies", "serialNumber") if required[key] != predicate[key]]
    return f"its {', '.join(other)} are not what the lock gives"


def _provenance(
    title: str, predicate: dict[str, Any], _: ReadImage, lock: Lock | None, locks: Sequence[str]
) -> StepResult:
    definition = predicate["buildDefinition"]
    named = set(_texts(definition))
    digests = [*locks, *([inputs_hash(lock)] if lock else [])]
    if not any(digest in named or digest.removeprefix("sha256:") in named for digest in digests):
        raise _Wrong("it does not name the lock that is attached")
    builder = predicate.get("runDetails", {}).get("builder", {}).get("id", "an unnamed builder")
    return passed(title, f"of the attached lock, by {builder}")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _smoke(title: str, predicate: dict[str, Any], found: ReadImage, _: Lock | None, __: Sequence[str]) -> StepResult:
    own = predicate["imagegen"]
    if own["image"] != found.digest:
        raise _Wrong(f"it is of {own['image']}, and this image is {found.digest}")
    if predicate["result"] != "PASSED" or own["report"]["passed"] is not True or predicate["failedTests"]:
        raise _Wrong(f"it did not pass: {', '.join(map(str, predicate['failedTests'])) or predicate['result']}")
    return passed(
        title, f"{counted(len(predicate['passedTests']), 'check')} passed, {'with' if own['gpu'] else 'without'} a GPU"
    )


def _audit(title: str, predicate: dict[str, Any], _: ReadImage, lock: Lock | None, __: Sequence[str]) -> StepResult:
    if lock and predicate["subject"] != lock.cell:
        raise _Wrong(f"it is of {predicate['subject']}, and this image is of {lock.cell}")
    errors = [
        f"{each['id']} {each['package'] or ''}".strip() for each in predicate["findings"] if each["severity"] == "error"
    ]
    if errors or predicate["passed"] is not True:
        raise _Wrong(f"it found {counted(len(errors), 'error')}: {', '.join(errors[:_NAMED])}")
    return passed(
        title, f"no errors, {counted(predicate['counts']['warning'], 'warning')}, {predicate['packages']} packages"
    )


def _numerics(title: str, content: dict[str, Any], found: ReadImage, _: Lock | None, __: Sequence[str]) -> StepResult:
    devices = [each.device for each in numerics.attached(content, found.digest)]
    return passed(title, f"measured on {' and '.join(devices)}")


_READERS: dict[str, Callable[[str, dict[str, Any], ReadImage, Lock | None, Sequence[str]], StepResult]] = {
    LAYERS.name: _layers,
    SBOM.name: _sbom,
    PROVENANCE.name: _provenance,
    SMOKE.name: _smoke,
    AUDIT.name: _audit,
    NUMERICS.name: _numerics,
}


# Verify that an image is what its lock says, from everything that its registry has of it and from no other source.
#
# Each artifact gives a step, and each fault is named. `contents` checks the image's bytes; this module checks what is
# attached to it: the lock, the bill of materials, the provenance, the reports, and the signatures. `app.comparison` has
# the order of the steps.

_PREDICATE = "dev.sigstore.bundle.predicateType"  # annotation of a bundle, as cosign writes it
_ORDER = (LAYERS, SBOM, PROVENANCE, SMOKE, AUDIT, NUMERICS)
_TITLES = {LOCK: "lock", LAYERS: "layers' list", SBOM: "SBOM", PROVENANCE: "provenance", SMOKE: "smoke report"}
_TITLES |= {AUDIT: "audit", NUMERICS: "numerical results"}
_ATTESTATION = "attestation of the "


@dataclass(frozen=True)
class Verified:
    """The verdict, and what a rebuild needs: the image and its lock, where both could be read.

    `signer` is trusted, signed the image, and attests this lock. Of an index, `platforms` has those of each platform's
    image.
    """

    verdict: ImageVerdict
    found: ReadImage | None
    lock: Lock | None
    signer: str | None = None
    platforms: Mapping[str, Verified] = field(default_factory=dict)


@dataclass(frozen=True)
class Attachments:
    """The referrers of an image in its registry: the artifacts that it lists, and their verification."""

    referrers: Sequence[Referrer]
    artifact: Callable[[Referrer], Artifact]  # its manifest
    result: VerificationResult
    demanded: bool  # whether the project or the user requires a trusted signer
    no_signer: str  # "no signer that the project names": the subject of a verdict without a trusted signature


@dataclass(frozen=True)
class VerificationOptions:
    """The user's requirements on an image, besides that it is the one of its lock.

    `cell` is the id of the cell that it must be, or of one of an index's. Without it, `contradiction` returns why the
    name is not one of the image of a lock, or of the index of several (None: it is, or a layout has no name).
    `signature`: an unsigned image fails even where no signer is trusted.
    """

    cell: str | None = None
    contradiction: Callable[[Sequence[Lock]], str | None] | None = None
    signature: bool = False


def verify_attachments(
    found: ReadImage, attachments: Attachments, demands: VerificationOptions
) -> tuple[Lock | None, str | None, list[StepResult]]:
    """Check what is attached to an image against the image.

    Return its lock, if one can be read, the signer as in `Verified`, and the steps.

    Raises UnavailableError.
    """
    of_documents = {document.digest for document in attachments.result.documents}
    others = [error for error in attachments.result.faults if str(error.where) not in of_documents]
    steps = [_fault(error.where, error.what, error.why, attachments.referrers) for error in others]
    by_kind: Mapping[Kind, list[Attached]] = {
        kind: [document for document in attachments.result.documents if document.document.kind is kind]
        for kind in KINDS.values()
    }
    lock = signer = None
    for each in by_kind[LOCK]:
        read, step = contents.read_lock(found, each.document.content)
        if lock is None and read:
            lock, signer = read, each.signer if attachments.result.signers else None
        steps.append(_attested(step, each, attachments))
    if not by_kind[LOCK]:
        steps.append(failed("lock", "none is attached: there is nothing that would say what this image should be"))
    if lock:
        steps += _name([lock], demands)
        steps.append(contents.image_step(found, lock))
    texts = [digest_of(each.document.content) for each in by_kind[LOCK]]
    steps += _signature(attachments, demands)
    for kind in _ORDER:
        title = _TITLES[kind]
        for each in by_kind[kind]:
            steps.append(_attested(attachment_step(title, each.document, found, lock, texts), each, attachments))
        if not by_kind[kind] and not any(step.name == title for step in steps):
            steps.append(StepResult(title, StepStatus.ABSENT, "none is attached"))
    steps += _facts(attachments, by_kind[LAYERS])
    return lock, signer, sorted(steps, key=lambda step: _rank(step.name))


def verify_index(
    locks: Mapping[str, Lock | None], attachments: Attachments, demands: VerificationOptions
) -> list[StepResult]:
    """Check that the attached `locks` of an index's images differ in the platform alone, and who signed the index."""
    steps = [_fault(error.where, error.what, error.why, attachments.referrers) for error in attachments.result.faults]
    known = {platform: lock for platform, lock in locks.items() if lock}
    cells = {(lock.image, *sorted({**lock.axes, "platform": ""}.items())) for lock in known.values()}
    other = [platform for platform, lock in known.items() if lock.platform != platform]
    names = ", ".join(f"{platform}: {lock.cell}" for platform, lock in known.items())
    if len(cells) > 1:
        steps.append(failed("platforms", f"the images differ in more than the platform: {names}"))
    elif other:
        steps.append(failed("platforms", f"the image for {other[0]} has a lock for another platform: {names}"))
    elif known:
        steps.append(passed("platforms", names))
    if known:
        steps += _name(list(known.values()), demands)
    return [*steps, *_signature(attachments, demands, "index")]


def _facts(attachments: Attachments, layers: Sequence[Attached]) -> Iterator[StepResult]:
    """Yield whether the layers' list and the list of wheel scans agree on digests. No scan is read."""
    named: dict[str, str] = {}
    for layer in layers:
        if layer.signer or not attachments.demanded:
            with suppress(TrustError):  # other formats name no scans
                named |= read_description(layer.document.content).facts
    artifacts = [each for each in attachments.referrers if each.artifact_type == FACTS]
    kept: set[str] = set()
    for referrer in artifacts:
        try:
            listed = {key: blob.digest for key, blob in attachments.artifact(referrer).parts}
        except UnavailableError:
            raise
        except FetchError as error:
            yield _fault(referrer.digest, error.what, error.why, attachments.referrers)
            return
        if others := sorted(key for key in named.keys() & listed.keys() if named[key] != listed[key]):
            why = f"under {others[0]} it keeps {listed[others[0]]}, and the layers' list names {named[others[0]]}"
            yield failed("facts", f"{referrer.digest}: {why}")
            return
        kept |= listed.keys()
    if lost := sorted(named.keys() - kept):
        outcome = StepStatus.FAIL if artifacts else StepStatus.ABSENT
        yield StepResult(
            "facts", outcome, f"{len(lost)} of the {len(named)} that the layers' list names are not attached"
        )
    elif artifacts:
        yield passed("facts", f"{len(named)}, attached with the digests that the layers' list names")


def _fault(where: object, what: str, why: str | None, referrers: Sequence[Referrer]) -> StepResult:
    """An artifact that is not what it pretends to be, by the name of what it should be."""
    listed = {each.digest: each for each in referrers}
    referrer = listed.get(str(where))
    evidence = ": ".join(part for part in (str(where) if where else None, what, why) if part)
    return failed(_title(referrer) if referrer else "attachments", evidence)


def _rank(name: str) -> int:
    """Return the position of a step in a verdict: an attestation's with what it attests."""
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
    """Return the step of a document; it fails if a signer is required and no trusted one attests it, or it was
    replaced.
    """
    for fault in attachments.result.faults:
        if str(fault.where) == attached.digest:
            evidence = _fault(fault.where, fault.what, fault.why, attachments.referrers).evidence
            return failed(step.name, evidence if step.outcome is StepStatus.PASS else f"{evidence}; {step.evidence}")
    if step.outcome is not StepStatus.PASS:
        return step
    if attached.signer:
        return passed(step.name, f"{step.evidence}; attested by {attached.signer}")
    if attachments.demanded:
        return failed(step.name, f"{attached.digest}: {attachments.no_signer} attests it")
    return step


def _name(locks: Sequence[Lock], demands: VerificationOptions) -> Iterator[StepResult]:
    """Yield whether the image, or one of an index, is of the requested cell, or else of one that may have its name."""
    cells = [lock.cell for lock in locks]
    named = " and ".join(cells)
    if demands.cell is not None:
        verdict = passed if demands.cell in cells else failed
        yield verdict("name", f"the image is of {named}, and --cell demands {demands.cell!r}")
    elif demands.contradiction:
        why = demands.contradiction(locks)
        yield failed("name", f"the image is of {named}: {why}") if why else passed("name", f"fits {named}")


def _signature(attachments: Attachments, demands: VerificationOptions, what: str = "image") -> Iterator[StepResult]:
    others = attachments.result.untrusted
    untrusted = f" ({counted(others, 'signature')} of others)" if others else ""
    if attachments.result.signers:
        yield passed("signature", f"signed by {', '.join(attachments.result.signers)}")
    elif attachments.demanded:
        yield failed("signature", f"{attachments.no_signer} has signed this {what}{untrusted}")
    elif demands.signature:
        yield failed("signature", f"a signature is required, and the project names no key and no identity{untrusted}")
    else:
        yield StepResult("signature", StepStatus.UNCHECKED, f"the project names no key{untrusted}")
