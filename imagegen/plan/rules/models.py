"""Model types in questions: `model==qwen3` stands for the releases of transformers and vLLM that know it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from imagegen.core.text import nearest
from imagegen.plan.matrix.models import PACKAGES, Models
from imagegen.plan.matrix.rule import Rule

_WORD = re.compile(r"model\s*==?\s*([\w.-]+)")
_WITHOUT = {
    "transformers": 'loading a checkpoint ends in "Transformers does not recognize this architecture" or a KeyError.',
    "vllm": "it runs transformers' own code for it, or refuses.",
}


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the model types that the words name, and the other words."""
    found = [(word, _WORD.fullmatch(word.strip())) for word in words]
    return [match[1] for _, match in found if match], [word for word, match in found if not match]


def rules(models: Models, name: str) -> Iterator[Rule]:
    """Yield the rules of a model type on transformers and vLLM; none for a type that is not known."""
    for package in PACKAGES:
        version = models.first.get(name, {}).get(package)
        if version and version != models.since[package]:
            yield Rule(
                id=f"model-{name}-{package}",
                when={},
                then={},
                conflict={package: f"<{version}"},
                because=f"{package} knows the model type {name} from {version} on; before, {_WITHOUT[package]}",
                source=models.source[package],
                date=models.read,
                severity="error" if package == "transformers" else "warning",
                evidence="measured",
                fix=f"Use {package} {version} or newer.",
            )


def summary(models: Models, name: str) -> str:
    """Return the first releases that know a model type, or that none is known to."""
    known = models.first.get(name)
    if known is None:
        near = nearest(name, models.first)
        hint = f" (did you mean {near}?)" if near else ""
        return f"model {name}: no release that was read knows it{hint} [{models.read}]"
    parts = [_first(models, package, known.get(package)) for package in PACKAGES]
    return f"model {name}: {'; '.join(parts)} [{models.read}]"


def _first(models: Models, package: str, version: str | None) -> str:
    if version is None:
        return f"no model code of its own in {package}"
    return f"{package} {version} or {'older' if version == models.since[package] else 'newer'}"
