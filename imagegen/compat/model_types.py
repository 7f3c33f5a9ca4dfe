"""Model types of checkpoints, which stand for the releases that support them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from imagegen.compat.derived import derived_rule
from imagegen.compat.models import PACKAGES, Models
from imagegen.compat.rule import Rule
from imagegen.core.errors import UsageError
from imagegen.core.text import nearest

if TYPE_CHECKING:
    from imagegen.compat.knowledge import RuleSubject

_WORD = re.compile(r"model\s*==?\s*([\w.-]+)")
_WITHOUT = {
    "transformers": 'loading a checkpoint ends in "Transformers does not recognize this architecture" or a KeyError.',
    "vllm": "it runs transformers' own code for it, or refuses.",
}


def one_model_type(words: Sequence[str], sets: Sequence[str] = ()) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the model type among the words and `--set` options ("": none), and the rest of each. Raises UsageError."""
    matches = {word: _WORD.fullmatch(word.strip()) for word in (*words, *sets)}
    names = sorted({match[1] for match in matches.values() if match})
    if len(names) > 1:
        raise UsageError(
            f"{' and '.join(names)} are several model types", code="usage-several-models", fix="ask about one at a time"
        )
    rest, rest_of_sets = (tuple(word for word in group if not matches[word]) for group in (words, sets))
    return names[0] if names else "", rest, rest_of_sets


def rules(subject: RuleSubject) -> Iterable[Rule]:
    """Return the rules of the model type that a question names."""
    name, load = subject.question.model if subject.question else "", subject.knowledge.model_types
    return model_type_rules(load(), name) if name and load else ()


def model_type_rules(models: Models, name: str) -> Iterator[Rule]:
    """Yield the rules of a model type on transformers and vLLM; none for a type that is not known."""
    for package in PACKAGES:
        version = models.first.get(name, {}).get(package)
        if version and version != models.since[package]:
            yield derived_rule(
                f"model-{name}-{package}",
                f"{package} knows the model type {name} from {version} on; before, {_WITHOUT[package]}",
                conflict={package: f"<{version}"},
                source=models.source[package],
                date=models.read,
                severity="error" if package == "transformers" else "warning",
                evidence="measured",
                kind="breaks" if package == "transformers" else "degrades",
                fix=f"Use {package} {version} or newer.",
            )


def model_type_summary(models: Models, name: str) -> str:
    """Return the first releases that know a model type, or that none is known to."""
    first_releases = models.first.get(name)
    if first_releases is None:
        near = nearest(name, models.first)
        hint = f" (did you mean {near}?)" if near else ""
        return f"model {name}: no release that was read knows it{hint} [{models.read}]"
    phrases = [_first(models, package, first_releases.get(package)) for package in PACKAGES]
    return f"model {name}: {'; '.join(phrases)} [{models.read}]"


def _first(models: Models, package: str, version: str | None) -> str:
    if version is None:
        return f"no model code of its own in {package}"
    return f"{package} {version} or {'older' if version == models.since[package] else 'newer'}"
