"""Check each document attached to an image against the image and its lock. Pure.

Sources: CycloneDX 1.6; SLSA provenance v1 (resolvedDependencies); in-toto test-result v0.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from imagegen.compare.image_bytes import ReadImage
from imagegen.compare.verdict import StepResult, StepStatus, failed, passed
from imagegen.core.data import parse_json
from imagegen.core.text import counted
from imagegen.lock import inputs_hash
from imagegen.lock.model import Lock
from imagegen.run import numerics
from imagegen.trust.documents import AUDIT, LAYERS, NUMERICS, PROVENANCE, SBOM, SMOKE, Document
from imagegen.trust.licences import KnownLicences
from imagegen.trust.sbom import sbom

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
    compiled = {build.name for environment in lock.environments for build in environment.lock.builds}
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
