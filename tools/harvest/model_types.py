"""The model types that releases of transformers and vLLM know, read in their wheels; no code of theirs runs.

transformers names its types in CONFIG_MAPPING_NAMES, and the classes of each type in MODEL_FOR_..._MAPPING_NAMES. vLLM
names only classes, in the tables ..._MODELS of its registry; a type is known to the first release with a class of it.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from packaging.version import Version

from imagegen.compat.metadata import PackageReleases
from imagegen.compat.models import Models
from imagegen.core.config import Settings
from imagegen.core.errors import FetchError
from imagegen.core.net import Client, package_index, wheel_metadata
from imagegen.core.net.package_index import DEFAULT, IndexLink
from imagegen.core.progress import Progress

SOURCE = {
    "transformers": "CONFIG_MAPPING_NAMES in transformers/models/auto of the wheels on PyPI",
    "vllm": "vllm/model_executor/models/registry.py of the wheels on PyPI, by the classes of a type in transformers",
}
_AUTO = "transformers/models/auto/"
_TYPES = ("auto_mappings.py", "configuration_auto.py")  # from 5.x on in the first
_CLASSES = "modeling_auto.py"
_REGISTRY = "vllm/model_executor/models/registry.py"
_GENERATES = re.compile(r"MODEL_FOR_(CAUSAL_LM|IMAGE_TEXT_TO_TEXT|VISION_2_SEQ|MULTIMODAL_LM)_MAPPING_NAMES")
_THREADS = 6  # wheels at once


def read(packages: Mapping[str, PackageReleases], settings: Settings, today: str, progress: Progress) -> Models:
    """Return the types of the harvested releases of transformers and vllm. Raises FetchError."""
    url = package_index.url_of(DEFAULT, settings)
    if url is None:
        raise FetchError(f"no address is known for the index {DEFAULT}", code="fetch-no-index")
    with Client(settings) as client, ThreadPoolExecutor(_THREADS) as pool:
        links = {name: _wheels(package_index.project(client, url, name), package) for name, package in packages.items()}
        files = {
            "transformers": (*(f"{_AUTO}{name}" for name in _TYPES), f"{_AUTO}{_CLASSES}"),
            "vllm": (_REGISTRY,),
        }

        def read_sources(name: str, link: IndexLink) -> list[bytes]:
            with wheel_metadata.archive(client, link) as wheel:
                present = wheel.namelist()
                return [wheel_metadata.bounded(wheel, wheel.getinfo(file)) for file in files[name] if file in present]

        progress.say(
            f"reading {', '.join(f'{len(wheels)} wheels of {name}' for name, wheels in links.items())} in parts"
        )
        texts = {
            name: dict(
                zip(wheels, pool.map(lambda link, name=name: read_sources(name, link), wheels.values()), strict=True)
            )
            for name, wheels in links.items()
        }
    types = {version: set(_types(sources)) for version, sources in texts["transformers"].items()}
    classes: dict[str, set[str]] = {}
    for text in texts["transformers"].values():
        for name, class_types in _classes(text):
            classes.setdefault(name, set()).update(class_types)
    registries = {version: set(_registered(sources)) for version, sources in texts["vllm"].items()}
    first = {
        name: {
            package: version
            for package, version in (
                ("transformers", _first(types, {name})),
                ("vllm", _first(registries, classes.get(name, set()))),
            )
            if version
        }
        for name in sorted(set[str]().union(*types.values()))
    }
    since = {name: min(wheels, key=Version) for name, wheels in links.items() if wheels}
    return Models(today, since, SOURCE, first)


def _wheels(links: list[IndexLink], package: PackageReleases) -> dict[str, IndexLink]:
    """Return a wheel for each release of the package that was harvested and is not yanked."""
    wheels: dict[str, IndexLink] = {}
    for link in links:
        version = link.filename.split("-")[1]
        release = package.releases.get(version)
        if link.filename.endswith(".whl") and release and not release.yanked and "aarch64" not in link.filename:
            wheels.setdefault(version, link)
    return wheels


def _first(releases: Mapping[str, set[str]], names: set[str]) -> str | None:
    """Return the oldest release that has one of the names."""
    return min((version for version, types in releases.items() if types & names), key=Version, default=None)


def _types(sources: list[bytes]) -> Iterator[str]:
    for name, pairs in _tables(sources):
        if name == "CONFIG_MAPPING_NAMES":
            yield from (key for key, _ in pairs)


def _classes(sources: list[bytes]) -> Iterator[tuple[str, list[str]]]:
    for name, pairs in _tables(sources):
        if _GENERATES.fullmatch(name):
            yield from pairs


def _registered(sources: list[bytes]) -> Iterator[str]:
    for name, pairs in _tables(sources):
        if name.endswith("_MODELS"):
            yield from (key for key, _ in pairs)


def _tables(sources: list[bytes]) -> Iterator[tuple[str, list[tuple[str, list[str]]]]]:
    """Yield (name, [(key, its texts)]) of each table of texts at module level: a dict, or pairs in OrderedDict."""
    for source in sources:
        for node in ast.parse(source).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name) and isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
                yield target.id, list(_pairs(node.value))


def _pairs(value: ast.expr) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(value):
        if isinstance(node, ast.Dict):
            couples = list(zip(node.keys, node.values, strict=True))
        elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
            couples = [(node.elts[0], node.elts[1])]
        else:
            continue
        for key, content in couples:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                constants = (part.value for part in ast.walk(content) if isinstance(part, ast.Constant))
                yield key.value, [constant for constant in constants if isinstance(constant, str)]


def dumps(models: Models) -> bytes:
    """Return the file, with a line for each type. Equal types give equal bytes."""
    lines = [
        f"    {json.dumps(name)}: {json.dumps(models.first[name], sort_keys=True)}" for name in sorted(models.first)
    ]
    head = {"read": models.read, "since": models.since, "source": models.source}
    top = "".join(f"  {json.dumps(key)}: {json.dumps(value, sort_keys=True)},\n" for key, value in head.items())
    body = "{\n" + ",\n".join(lines) + "\n  }" if lines else "{}"
    return f'{{\n{top}  "models": {body}\n}}\n'.encode()
