"""The objects written to a registry by kind, read from its requests."""

from __future__ import annotations

import json
from collections import Counter
from urllib.parse import parse_qs, urlsplit

from imagegen.oci.documents import EMPTY
from imagegen.trust.documents import BUNDLE, FACTS, KINDS

_NAMES = {kind.media_type: kind.name for kind in KINDS.values()} | {FACTS: "facts", BUNDLE: "signatures"}


class Wire:
    """Given each request that carries something, in their order."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()  # bytes of an upload that has not ended, by its path
        self._blobs: Counter[str] = Counter()  # and of those that have, by digest
        self._manifests: list[bytes] = []

    def saw(self, method: str, address: str, body: bytes) -> None:
        path, query = urlsplit(address).path, parse_qs(urlsplit(address).query)
        if "/blobs/uploads/" in path:
            self._open[path] += len(body)
            if method == "PUT":
                self._blobs[query["digest"][0]] += self._open.pop(path)
        elif method == "PUT":
            self._manifests.append(body)

    def split(self) -> dict[str, tuple[int, int]]:
        """Return how many of a kind were sent, and their bytes. Manifests of documents and lists of these are kinds
        too.
        """
        kinds: dict[str, str] = {}
        found: list[tuple[str, int]] = []
        for body in self._manifests:
            document = json.loads(body)
            artifact = "subject" in document
            image = "image's manifest" if "layers" in document else "lists of documents"
            found.append(("documents' manifests" if artifact else image, len(body)))
            parts = _NAMES[document["artifactType"]] if artifact else "image's layers"
            kinds |= {each["digest"]: parts for each in document.get("layers", ())}
            if "config" in document:
                kinds[document["config"]["digest"]] = "image's config"
        kinds[EMPTY.digest] = "documents' config"
        found += [(kinds.get(digest, "unknown"), size) for digest, size in self._blobs.items()]
        return {
            kind: (sum(each == kind for each, _ in found), sum(size for each, size in found if each == kind))
            for kind in sorted({kind for kind, _ in found})
        }
