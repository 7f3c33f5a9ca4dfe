"""The keys of all artifacts of a lock, computed without network, store or engine.

Only this module knows where the code base computes a key, so that a refactoring changes this module, and neither the
test nor its golden file. Nothing here depends on the machine: the codec of layers and the digest of the audit's
programs, which are parts of keys, are replaced by constants.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn, cast
from unittest import mock

from imagegen.app import audit
from imagegen.app.make_locks import foundation_keys
from imagegen.app.session import Session
from imagegen.core.config import Settings
from imagegen.core.context import Context
from imagegen.core.git import source_tree
from imagegen.core.progress import Quiet
from imagegen.core.store.cache import Cache
from imagegen.image import base, dockerfile, file_tree
from imagegen.image.base import fetch, registry_image
from imagegen.image.inventory import cell_subject
from imagegen.image.layers import assembly, base_layers, gzip_layers, layer, ownership, plan, scan, sources, support
from imagegen.image.layers.assembly import image_key, record_contradictions, recorded_image
from imagegen.image.layers.image_config import base_image
from imagegen.image.layers.layers_document import description
from imagegen.lock import builds as build_keys
from imagegen.lock import dumps, dumps_attached, inputs_hash, local_tags, sdist
from imagegen.lock.file import contents_hash
from imagegen.lock.interpreter import interpreter_key
from imagegen.lock.model import Lock, LockedBuild, LockedWheel
from imagegen.publish import tags
from imagegen.run import numerics
from imagegen.run.smoke import passed as smoke_reports
from imagegen.spec.model import Cell, Declarations
from imagegen.trust.licences import KnownLicences
from imagegen.trust.sbom import sbom
from imagegen.wheels.builds.store import cost_key
from imagegen.wheels.remote_wheelhouse import tag

_SHORT = 32  # characters of a value or digest in a line
_CODEC = "a codec"
_IMAGE = f"sha256:{'1' * 64}"


class _RequestedKeyError(Exception):
    """The key that an operation asked a cache for; the exception ends the operation."""


def artifact_keys(lock: Lock, declarations: Declarations) -> dict[str, list[str]]:
    """Return the keys of all artifacts of a lock by kind; a kind may have none.

    `declarations` are those of the lock's cell.
    """
    with _constants():
        return {
            **_lock_keys(lock),
            **_foundation(lock),
            **_wheel_keys(lock),
            **_build_keys(lock),
            **_layer_keys(lock),
            **_image_keys(lock),
            **_check_keys(lock, declarations),
        }


def layer_lines(lock: Lock) -> list[str]:
    """Return a line for each layer from the bottom up: name, key, and digests of wheels and prefixes."""
    return [_layer_line(number, part) for number, part in enumerate(sources.plan_layers(lock))]


def matrix_keys(session: Session, cell: Cell, lock: Lock) -> dict[str, list[str]]:
    """Return the hashes of the matrix inputs that a cell has now, and what is wrong with its lock."""
    check = session.lock_files.check(lock, cell)
    return {
        "matrix inputs": [f"{name} {digest}" for name, digest in cell.inputs.items()],
        "lock check": [*check.stale, *check.contradictions, *check.edited] or ["fresh"],
        "lock verdict": [check.verdict.answer] if check.verdict else [],
        "lock conflicts": [
            " ".join(rule.id for rule in conflict.rules)
            for conflict in (check.verdict.conflicts if check.verdict else ())
        ],
    }


def digest_of_text(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


@contextmanager
def _constants() -> Iterator[None]:
    with (
        mock.patch.object(layer, "CODEC", _CODEC),
        mock.patch.object(assembly, "CODEC", _CODEC),
        mock.patch.object(sys.modules[description.__module__], "CODEC", _CODEC),
        mock.patch.object(audit, "audit_digest", return_value="the programs of the audit"),
    ):
        yield


def _lock_keys(lock: Lock) -> dict[str, list[str]]:
    return {
        "lock file": [digest_of_text(dumps(lock))],
        "lock document": [digest_of_text(dumps_attached(lock))],
        "lock inputs hash": [inputs_hash(lock)],
        "lock contents hash": [contents_hash(lock)],
        "lock index hash": [tags.index_inputs([lock])],
        "lock engine tags": [*local_tags(lock)],
        "lock inputs": [f"{name} {digest}" for name, digest in lock.inputs.items()],
    }


def _foundation(lock: Lock) -> dict[str, list[str]]:
    below = lock.foundation
    added = [lock.added.debs] if lock.added else []
    return {
        "base": [base.key(lock.base)],
        "base of byte-code": [base.key(lock.bytecode_base)] if lock.bytecode_base else [],
        "base image": [lock.base.content.digest, _published_key(lock)] if lock.base.content else [],
        "base packages listed by mirrors": [fetch.listing(debs) for debs in (lock.base.debs, *added)],
        "packages": [base.packages_key(below.added, base.key(lock.base))] if below.added else [],
        "base and packages": [file_tree.bottom_key(below)],
        "file tree": [file_tree.tree_key(below)],
        "interpreter": [interpreter_key(lock.interpreter)],
        "interpreter layer": [plan.interpreter_layer_key(lock)],
        "foundation comparison": [key for key in foundation_keys(below).values() if isinstance(key, str)],
        "system scan": [cell_subject.system_key(lock)],
    }


def _wheel_keys(lock: Lock) -> dict[str, list[str]]:
    wheels = lock.distinct_wheels
    python = lock.python
    workshop = file_tree.sdist_builder(lock.foundation, cast("Context", SimpleNamespace(store=None, progress=Quiet())))
    built = [wheel for wheel in wheels if wheel.sdist]
    return {
        "wheels": [_identity(wheel) for wheel in wheels],
        "wheel scans": [scan.scan_key(wheel, python) for wheel in wheels],
        "wheel contents": [ownership.contents_key(wheel, python) for wheel in wheels],
        "audit records": [key for _, key in cell_subject.scan_keys(lock)],
        "patched wheels": [
            " ".join([_identity(wheel), wheel.original.sha256, *(patch.sha256 for patch in wheel.patches)])
            for wheel in wheels
            if wheel.original
        ],
        "sdist builder": [workshop.key, workshop.interpreter] if built else [],
        "sdist wheels": [sdist.wheel_key(wheel.sdist, workshop) for wheel in built if wheel.sdist],
        "sdist build requirements": [
            _identity(each) for wheel in built if wheel.sdist for each in wheel.sdist.build_requires
        ],
        "sdist archives of commits": [_archive_key(wheel) for wheel in built if wheel.sdist and wheel.sdist.git],
    }


def _build_keys(lock: Lock) -> dict[str, list[str]]:
    locked = [(each.lock, build) for each in lock.environments for build in each.lock.builds]
    return {
        "builder": [build_keys.builder()] if locked else [],
        "builds": [build.key for _, build in locked],
        "builds computed": [build_keys.key_of(build, own) for own, build in locked],
        "build caches": [dockerfile.cache_of(build) for _, build in locked],
        "build tags": [tag(build.key) for _, build in locked],
        "build costs": [cost_key(build) for _, build in locked],
        "build archives of commits": [_archive_key(build) for _, build in locked if build.git],
        "build toolchains": [
            line for each in lock.environments if each.lock.builds for line in _toolchain_lines(each.lock)
        ],
    }


def _toolchain_lines(lock: Lock) -> list[str]:
    below = dockerfile.toolchain(lock)
    return [inputs_hash(below), *layer_lines(below)]


def _layer_keys(lock: Lock) -> dict[str, list[str]]:
    planned = sources.plan_layers(lock)
    return {
        "stored layers": [layer.stored_key(part.key) for part in planned],
        "layer segments": [
            layer.segment_key(_lock_at(lock, part.prefixes[0]), wheel, part.prefixes, absent)
            for part in planned
            for wheel in part.wheels
            for absent in ((), ("/b", "/a"))
        ],
        "support files": [" ".join(row) for row in support.support_identity(lock)],
        "support byte-code": [plan.bytecode_key(lock)],
        "copied files": [plan.files_key(lock)],
        "loader cache": [plan.loader_key(lock)],
    }


def _image_keys(lock: Lock) -> dict[str, list[str]]:
    recorded = recorded_image(lock)
    below = recorded.layers[: len(base_layers.plan_base(lock))]
    return {
        "image remembered": [image_key(lock)],
        "image": [recorded.digest],
        "image config": [digest_of_text(recorded.config)],
        "image of the base": [base_image(lock, below).digest],
        "layers document": [digest_of_text(description(lock, recorded, {}))],
        "SBOM": [digest_of_text(sbom(lock, _IMAGE, KnownLicences()))],
        "recompressed layers": [gzip_layers.gzip_key(each, _CODEC) for each in recorded.layers],
        "recorded image": [lock.record.digest, str(lock.record.layer_format)] if lock.record else [],
        "recorded layers": [
            f"{each.name} {each.size} {each.digest} {each.diff_id} {each.key}"
            for each in (lock.record.layers if lock.record else ())
        ],
        "record contradictions": list(record_contradictions(lock)),
        **_dockerfile_keys(lock),
    }


def _dockerfile_keys(lock: Lock) -> dict[str, list[str]]:
    if lock.has_several:
        return {}
    rendered = dockerfile.render(lock, local_tags(lock)[0])
    return {
        "Dockerfile": [digest_of_text(rendered.dockerfile)],
        "Dockerfile arguments": [rendered.arguments],
        "Dockerfile wheels": [_identity(wheel) for wheel in rendered.wheels],
    }


def _check_keys(lock: Lock, declarations: Declarations) -> dict[str, list[str]]:
    several = lock.has_several
    programs = smoke_reports.programs_digest(lock, declarations)
    passed = smoke_reports.PassedSmokeReport(_IMAGE, programs, True, {})
    conditions = SimpleNamespace(identity="an engine")
    return {
        "audit": [
            _audit_key(each.lock, declarations.environments[each.name] if several else declarations)
            for each in lock.environments
        ],
        "smoke programs": [programs],
        "smoke reports": [smoke_reports.report_key(_IMAGE, programs, gpu) for gpu in (False, True)],
        "smoke runs": [smoke_reports.run_key(passed, cast("Any", conditions))],
        "numerics": [numerics.fingerprint_key(_IMAGE)],
    }


def _audit_key(lock: Lock, declarations: Declarations) -> str:
    return audit.audit_key(lock, cast("Cell", SimpleNamespace(declarations=declarations)))


def _lock_at(lock: Lock, prefix: str) -> Lock:
    return next(each.lock for each in lock.environments if each.prefix == prefix)


def _identity(wheel: LockedWheel) -> str:
    return f"{wheel.name}=={wheel.version} {wheel.file.filename} {wheel.file.sha256} {wheel.file.index}"


def _layer_line(number: int, part: plan.LayerPlan) -> str:
    wheels = " ".join(_identity(wheel) for wheel in part.wheels)
    suffix = f" {len(part.wheels)}:{digest_of_text(wheels)[:12]}" if part.wheels else ""
    others = f" {','.join(part.prefixes)}" if len(part.prefixes) > 1 else ""
    return f"{number:02} {part.name} {part.key.removeprefix('sha256:')}{suffix}{others}"


def _archive_key(package: LockedWheel | LockedBuild) -> str:
    """Return the key of the archive that is packed of a package's commit."""
    if isinstance(package, LockedBuild):
        commit, submodules = package.git, package.submodules
    else:
        commit, submodules = package.sdist and package.sdist.git, ()
    assert commit
    source = source_tree.TreeSource(
        commit.url, commit.commit, commit.tree, submodules=submodules, exclude=commit.exclude
    )
    store = SimpleNamespace(lock=_raise_key)
    context = cast("Context", SimpleNamespace(store=store))
    return _captured(lambda: source_tree.archive(source, f"{package.name}-{package.version}", context))


def _published_key(lock: Lock) -> str:
    """Return the key under which a store remembers that a registry has the base as it is locked."""
    with mock.patch.object(Cache, "get", lambda _cache, _store, key: _raise_key(key)):
        context = Context(cast("Any", None), cast("Settings", None), Quiet())
        return _captured(lambda: registry_image.require_published(lock.base, lock.platform, context))


def _raise_key(key: str) -> NoReturn:
    raise _RequestedKeyError(key)


def _captured(operation: Any) -> str:
    try:
        operation()
    except _RequestedKeyError as error:
        return str(error)
    raise AssertionError("the operation asked for no key")


def summary(keys: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield a line for each kind that has keys: a single short value, else their number and a digest of all."""
    for kind, values in keys.items():
        if not values:
            continue
        if len(values) == 1 and len(values[0]) <= _SHORT:
            yield f"{kind}: {values[0]}"
        else:
            text = "\n".join(sorted(values))
            yield f"{kind}: {len(values)} {digest_of_text(text)[:_SHORT]}"
