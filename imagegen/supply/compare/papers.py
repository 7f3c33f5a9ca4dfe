"""Check each document attached to an image against the image and its lock. Pure.

Sources: CycloneDX 1.6; SLSA provenance v1 (resolvedDependencies); in-toto test-result v0.1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from imagegen.core.text import counted
from imagegen.plan.lock import inputs_hash
from imagegen.plan.lock.model import Lock
from imagegen.run.smoke import numerics
from imagegen.supply.compare.contents import Found
from imagegen.supply.compare.verdict import Outcome, Step, failed, passed
from imagegen.supply.trust.documents import AUDIT, LAYERS, NUMERICS, PROVENANCE, SBOM, SMOKE, Document
from imagegen.supply.trust.sbom import Known, sbom

# Said by the packages themselves and by the base, not by the lock.
_UNKNOWN_HERE = ("imagegen:licence", "imagegen:source-package", "imagegen:system")
_NAMED = 3  # findings of an audit
_OF_WHEEL = ("imagegen:size", "imagegen:index")


class _Wrong(Exception):
    """A contradiction between a document and the image or its lock."""


def step(title: str, document: Document, found: Found, lock: Lock | None, locks: Sequence[str]) -> Step:
    """Check that the document is about this image and correct; `locks` are digests of attached locks."""
    try:
        predicate = json.loads(document.content)
        return _READERS[document.kind.name](title, predicate, found, lock, locks)
    except (_Wrong, ValueError, RecursionError) as error:
        return failed(title, str(error))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        return failed(title, f"it has not the form of one: {type(error).__name__} {error}")


def _layers(title: str, predicate: dict[str, Any], found: Found, lock: Lock | None, locks: Sequence[str]) -> Step:
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


def _sbom(title: str, predicate: dict[str, Any], found: Found, lock: Lock | None, _: Sequence[str]) -> Step:
    if lock is None:
        return Step(title, Outcome.UNCHECKED, "there is no lock to hold it to")
    compiled = {build.name for build in lock.builds}
    wanted = json.loads(sbom(lock, found.digest, Known()))
    whole = lock.base.content is None  # else the Debian packages of a registry's image are not the lock's to say
    one, other = (_comparable(each, compiled, whole=whole) for each in (wanted, predicate))
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


def _first(wanted: dict[str, Any], predicate: dict[str, Any]) -> str:
    """Return the first difference between an attached bill of materials and the one that the lock gives."""
    there, own = predicate["components"], wanted["components"]
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
    other = [key for key in ("about", "dependencies", "serialNumber") if wanted[key] != predicate[key]]
    return f"its {', '.join(other)} are not what the lock gives"


def _provenance(title: str, predicate: dict[str, Any], _: Found, lock: Lock | None, locks: Sequence[str]) -> Step:
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


def _smoke(title: str, predicate: dict[str, Any], found: Found, _: Lock | None, __: Sequence[str]) -> Step:
    own = predicate["imagegen"]
    if own["image"] != found.digest:
        raise _Wrong(f"it is of {own['image']}, and this image is {found.digest}")
    if predicate["result"] != "PASSED" or own["report"]["passed"] is not True or predicate["failedTests"]:
        raise _Wrong(f"it did not pass: {', '.join(map(str, predicate['failedTests'])) or predicate['result']}")
    return passed(
        title, f"{counted(len(predicate['passedTests']), 'check')} passed, {'with' if own['gpu'] else 'without'} a GPU"
    )


def _audit(title: str, predicate: dict[str, Any], _: Found, lock: Lock | None, __: Sequence[str]) -> Step:
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


def _numerics(title: str, content: dict[str, Any], found: Found, _: Lock | None, __: Sequence[str]) -> Step:
    devices = [each.device for each in numerics.attached(content, found.digest)]
    return passed(title, f"measured on {' and '.join(devices)}")


_READERS: dict[str, Callable[[str, dict[str, Any], Found, Lock | None, Sequence[str]], Step]] = {
    LAYERS.name: _layers,
    SBOM.name: _sbom,
    PROVENANCE.name: _provenance,
    SMOKE.name: _smoke,
    AUDIT.name: _audit,
    NUMERICS.name: _numerics,
}
