"""Every key of every artifact stays what it is, for all shipped locks and for small ones of the other kinds.

A key that moves makes every machine build, fetch and compile again, and breaks the promise that a lock gives one image.
The golden file has a section for each lock: a line for each kind of key with the number of keys and a digest of the
sorted keys, then a line for each layer in the image's order. It changes where a lock or the matrix changes; a change of
code alone must leave it unchanged.

These functions are covered, through tests.support.artifact_keys:

- lock: inputs_hash, contents_hash, local_tags, dumps, dumps_attached, publish.tags.index_inputs
- matrix: the hashes of a cell's inputs (cells.sha256, sdist_inputs); freshness, contradictions and verdict of its lock
- base: base.key of Debian's and of a registry's base, packages_key, fetch.listing, the key of require_published
- foundation: bottom_key, tree_key, interpreter_key, interpreter_layer_key, foundation_keys, system_key
- wheels: identity, scan_key, contents_key, scan_keys, segment_key, sdist_builder, wheel_key, git.archive's key
- builds: builder, key_of, cache_of, wheelhouse.tag, cost_key, toolchain
- layers: plan_layers with from_image, layer_key, files_key, loader_key, support_key; support_identity, bytecode_key,
  stored_key, gzip_key
- images: image_key, recorded_image, base_image, the LAYERS document, the SBOM, the record, the rendered Dockerfile
- checks: audit_key, programs_digest, report_key, run_key, fingerprint_key

Not covered, since these depend on the code's own files, on the machine or on answers of the network: results kept by
core.compiled and app.finished, provenance (it names the version), keys of addresses (find, lock.sources,
package_index.on_demand), and checks.worker.source.identity, which reads unpacked sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from imagegen.app.project import ProjectContext
from imagegen.app.session import Session
from imagegen.core.compiled import ResultCache
from imagegen.core.progress import Quiet
from imagegen.lock.model import Lock
from imagegen.spec.model import Declarations
from tests.support.artifact_keys import artifact_keys, layer_lines, matrix_keys, summary
from tests.support.artifact_locks import sample_locks
from tests.support.shipped_locks import NAMES


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session of the shipped matrices and locks alone, which keeps no results."""
    session = Session(ProjectContext({"XDG_CACHE_HOME": str(tmp_path)}, tmp_path, Quiet()))
    session.project.results = ResultCache(None)
    return session


def test_artifact_keys(session: Session, golden: Callable[[str, str], None]) -> None:
    locked_cells = {cell.id: cell for cell in session.matrix.all_cells if session.lock_files.has(cell)}
    assert sorted(locked_cells) == NAMES
    lines: list[str] = []
    for name in NAMES:
        cell = locked_cells[name]
        lock = session.lock_files.find(cell)
        assert lock is not None
        keys = matrix_keys(session, cell, lock) | artifact_keys(lock, cell.declarations)
        lines += _section(name, keys, lock)
    for name, lock in sample_locks().items():
        lines += _section(name, artifact_keys(lock, _declarations(lock)), lock)
    golden("artifact-keys.txt", "\n".join(lines))


def _section(name: str, keys: Mapping[str, list[str]], lock: Lock) -> list[str]:
    """Return the lines about a lock. All but the first are indented, so that `git diff` shows the name of the lock."""
    return [name, *(f" {line}" for line in (*summary(keys), *layer_lines(lock))), ""]


def _declarations(lock: Lock) -> Declarations:
    names = [environment.name for environment in lock.environments] if lock.has_several else []
    return Declarations(imports={"numpy": ("numpy",)}, environments={name: Declarations() for name in names})
