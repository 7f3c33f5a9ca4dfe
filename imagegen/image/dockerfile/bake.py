"""docker-bake.json beside rendered folders: one target for each, so that `docker buildx bake` builds them.

Source of the format: Docker's Bake file reference (JSON; `${NAME}` is a variable, which the environment may set).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagegen.core import data
from imagegen.core.errors import Location, StoreError
from imagegen.core.store import disk
from imagegen.image.dockerfile.dockerfile import OUTPUT, Rendered

FILE = "docker-bake.json"
_CA = "SSL_CERT_FILE"


def bake(targets: Mapping[str, Rendered]) -> dict[str, Any]:
    """Return the bake file for folders below its own; `targets` is by folder. The group `default` is all of them."""
    return {
        "variable": {_CA: {"default": "/dev/null"}},
        "group": {"default": {"targets": sorted(map(_name, targets))}},
        "target": {_name(folder): _target(folder, targets[folder]) for folder in sorted(targets)},
    }


def write_bake(directory: Path, targets: Mapping[str, Rendered]) -> None:
    """Write the bake file of `directory`. Targets that an earlier call wrote stay as long as their folders are there.

    Raises StoreError when it cannot be written, or what is there is no bake file.
    """
    path = directory / FILE
    made = bake(targets)
    kept = {
        name: target
        for name, target in _before(path).items()
        if name not in made["target"] and (directory / target["context"]).is_dir()
    }
    made["target"] = dict(sorted((kept | made["target"]).items()))
    made["group"]["default"]["targets"] = list(made["target"])
    with disk.explained(directory, "the output directory", "name another one", 0):
        data.write(path, json.dumps(made, indent=2).encode() + b"\n")


def _name(folder: str) -> str:
    """Names of targets know no dots."""
    return folder.replace(".", "_")


def _target(folder: str, rendered: Rendered) -> dict[str, Any]:
    here = f"./{folder}"
    return {
        "context": here,
        "contexts": {name: place.replace("./", f"{here}/") for name, place in rendered.contexts.items()},
        "secret": [f"id=ca,src=${{{_CA}}}"],
        "tags": [rendered.tag],
        "attest": ["type=provenance,disabled=true"],  # it would move the digest on every build
        "output": [OUTPUT],
    }


def _before(path: Path) -> dict[str, Any]:
    try:
        targets: dict[str, Any] = json.loads(data.read(path))["target"]
        return {name: target for name, target in targets.items() if isinstance(target["context"], str)}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            "what is there is no bake file of ours",
            code="store-foreign-file",
            where=Location(path),
            why=str(error),
            fix="move it away",
        ) from error
