"""The data that rules come from, and the input that they are about."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from imagegen.compat.published_builds import Builds
from imagegen.compat.rule import PinOverride, Rule
from imagegen.compat.statements import MetadataCache

if TYPE_CHECKING:
    from imagegen.compat.facts import Facts
    from imagegen.compat.models import Models
    from imagegen.compat.question import Question

# A question, also while suggestions are searched for it; a cell of the matrix; a lock; or a package that the metadata
# of a question or a cell requires.
SubjectKind = Literal["question", "suggestion", "cell", "lock", "package"]


class Knowledge(NamedTuple):
    """All data about packages. `shared_names` and `model_types` read theirs when they are called."""

    rules: Sequence[Rule] = ()  # of the matrix
    metadata: MetadataCache = MetadataCache(lambda _: None)
    builds: Builds | None = None
    overrides: Sequence[PinOverride] = ()
    shared_names: Callable[[Collection[str] | None], Iterable[Rule]] = lambda _: ()  # of packages; None: of components
    model_types: Callable[[], Models] | None = None


class RuleSubject(NamedTuple):
    """The input that rules are about."""

    kind: SubjectKind
    facts: Facts
    knowledge: Knowledge
    question: Question | None = None
    package: str = ""  # of the kind "package"
    is_free: bool = False  # whether a suggestion may change the version of `package`

    @classmethod
    def of_question(cls, question: Question, knowledge: Knowledge, kind: SubjectKind = "question") -> RuleSubject:
        return cls(kind, question.facts, knowledge, question)
