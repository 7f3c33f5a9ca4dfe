"""Verify that an image is what its lock says, from everything that its registry has of it and from no other source.

Each artifact gives a step, and each fault is named. `contents` checks the image's bytes; this module checks what is
attached to it: the lock, the bill of materials, the provenance, the reports, and the signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from imagegen.core.errors import FetchError, TrustError
from imagegen.core.net import UnavailableError
from imagegen.core.progress import Progress
from imagegen.core.registry import Artifact, Referrer
from imagegen.core.store import digest_of
from imagegen.core.text import counted
from imagegen.image.layers import describe
from imagegen.plan.lock.model import Lock
from imagegen.supply.compare import contents, papers
from imagegen.supply.compare.contents import Found
from imagegen.supply.compare.sides import Source
from imagegen.supply.compare.verdict import Outcome, Step, Verdict, failed, passed
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
    Kind,
)

_PREDICATE = "dev.sigstore.bundle.predicateType"  # annotation of a bundle, as cosign writes it
_ORDER = (LAYERS, SBOM, PROVENANCE, SMOKE, AUDIT, NUMERICS)
_TITLES = {LOCK: "lock", LAYERS: "layers' list", SBOM: "SBOM", PROVENANCE: "provenance", SMOKE: "smoke report"}
_TITLES |= {AUDIT: "audit", NUMERICS: "numerical results"}
_ATTESTATION = "attestation of the "


@dataclass(frozen=True)
class Verified:
    """The verdict, and what a rebuild needs: the image and its lock, where both could be read."""

    verdict: Verdict
    found: Found | None
    lock: Lock | None


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

    `cell` is the id of the cell that it must be. Without it, `contradiction` returns why the image's name is not one of
    the lock's cell (None: it is, or a layout has no name). `signature`: an unsigned image fails even where no signer is
    trusted.
    """

    cell: str | None = None
    contradiction: Callable[[Lock], str | None] | None = None
    signature: bool = False


def verify(
    reference: str,
    source: Source,
    asked: str,
    said: Callable[[str], Attachments],
    progress: Progress,
    stop: Callable[[], None],
    *,
    layers: bool = True,
    demands: VerificationOptions | None = None,
) -> Verified:
    """Verify the image under a tag or digest; `said` returns the attachments of the image with a digest.

    Without `layers` their bytes are not checked. Raises UnavailableError, and NotFoundError where there is no image.
    """
    found, steps = contents.found_at(source, asked, reference)
    if found is None:
        return Verified(Verdict(reference, None, tuple(steps)), None, None)
    if layers:
        steps += contents.layer_steps(found, source, stop, progress)
    else:
        steps.append(Step("layers", Outcome.UNCHECKED, "they were left out"))
    about = said(found.digest)
    lock, more = _attached(found, about, demands or VerificationOptions())
    verdict = Verdict(reference, found.digest, (*steps, *more))
    return Verified(verdict, found, lock)


def _attached(found: Found, said: Attachments, demands: VerificationOptions) -> tuple[Lock | None, list[Step]]:
    of_documents = {each.digest for each in said.result.documents}
    others = [error for error in said.result.faults if str(error.where) not in of_documents]
    steps = [_fault(error.where, error.what, error.why, said.referrers) for error in others]
    by_kind: Mapping[Kind, list[Attached]] = {
        kind: [each for each in said.result.documents if each.document.kind is kind] for kind in KINDS.values()
    }
    lock = None
    for each in by_kind[LOCK]:
        read, step = contents.read_lock(found, each.document.content)
        lock = lock or read
        steps.append(_attested(step, each, said))
    if not by_kind[LOCK]:
        steps.append(failed("lock", "none is attached: there is nothing that would say what this image should be"))
    if lock:
        steps += _name(lock, demands)
        steps.append(contents.image_step(found, lock))
    texts = [digest_of(each.document.content) for each in by_kind[LOCK]]
    steps += _signature(said, demands)
    for kind in _ORDER:
        title = _TITLES[kind]
        for each in by_kind[kind]:
            steps.append(_attested(papers.step(title, each.document, found, lock, texts), each, said))
        if not by_kind[kind] and not any(step.name == title for step in steps):
            steps.append(Step(title, Outcome.ABSENT, "none is attached"))
    steps += _facts(said, by_kind[LAYERS])
    return lock, sorted(steps, key=lambda step: _rank(step.name))


def _facts(said: Attachments, layers: Sequence[Attached]) -> Iterator[Step]:
    """Yield whether the layers' list and the list of wheel scans agree on digests. No scan is read."""
    named: dict[str, str] = {}
    for each in layers:
        if each.signer or not said.demanded:
            with suppress(TrustError):  # other formats name no scans
                named |= describe.read(each.document.content).facts
    artifacts = [each for each in said.referrers if each.artifact_type == FACTS]
    kept: set[str] = set()
    for referrer in artifacts:
        try:
            listed = {key: blob.digest for key, blob in said.artifact(referrer).parts}
        except UnavailableError:
            raise
        except FetchError as error:
            yield _fault(referrer.digest, error.what, error.why, said.referrers)
            return
        if others := sorted(key for key in named.keys() & listed.keys() if named[key] != listed[key]):
            why = f"under {others[0]} it keeps {listed[others[0]]}, and the layers' list names {named[others[0]]}"
            yield failed("facts", f"{referrer.digest}: {why}")
            return
        kept |= listed.keys()
    if lost := sorted(named.keys() - kept):
        outcome = Outcome.FAIL if artifacts else Outcome.ABSENT
        yield Step("facts", outcome, f"{len(lost)} of the {len(named)} that the layers' list names are not attached")
    elif artifacts:
        yield passed("facts", f"{len(named)}, attached with the digests that the layers' list names")


def _fault(where: object, what: str, why: str | None, referrers: Sequence[Referrer]) -> Step:
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


def _attested(step: Step, attached: Attached, said: Attachments) -> Step:
    """Return the step of a document; it fails if a signer is required and no trusted one attests it, or it was
    replaced.
    """
    for fault in said.result.faults:
        if str(fault.where) == attached.digest:
            evidence = _fault(fault.where, fault.what, fault.why, said.referrers).evidence
            return failed(step.name, evidence if step.outcome is Outcome.PASS else f"{evidence}; {step.evidence}")
    if step.outcome is not Outcome.PASS:
        return step
    if attached.signer:
        return passed(step.name, f"{step.evidence}; attested by {attached.signer}")
    if said.demanded:
        return failed(step.name, f"{attached.digest}: {said.no_signer} attests it")
    return step


def _name(lock: Lock, demands: VerificationOptions) -> Iterator[Step]:
    """Yield whether the image is of the requested cell, or else of one that may have its name."""
    if demands.cell is not None:
        verdict = passed if demands.cell == lock.cell else failed
        yield verdict("name", f"the image is of {lock.cell}, and --cell demands {demands.cell!r}")
    elif demands.contradiction:
        why = demands.contradiction(lock)
        yield failed("name", f"the image is of {lock.cell}: {why}") if why else passed("name", f"fits {lock.cell}")


def _signature(said: Attachments, demands: VerificationOptions) -> Iterator[Step]:
    others = said.result.untrusted
    untrusted = f" ({counted(others, 'signature')} of others)" if others else ""
    if said.result.signers:
        yield passed("signature", f"signed by {', '.join(said.result.signers)}")
    elif said.demanded:
        yield failed("signature", f"{said.no_signer} has signed this image{untrusted}")
    elif demands.signature:
        yield failed("signature", f"a signature is required, and the project names no key and no identity{untrusted}")
    else:
        yield Step("signature", Outcome.UNCHECKED, f"the project names no key{untrusted}")
