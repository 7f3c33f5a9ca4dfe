"""Answer whether the pins of a project's file work together: a uv.lock, a requirements.txt, a Dockerfile.

The question is about the packages of which something is known. The index is asked, within the limits of every question,
only for releases of packages that the project requires itself or that have builds for several CUDA releases, and of a
file that no resolver wrote for unknown packages if these are few.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from imagegen.app.import_project import Selection, known_facts, recover, require_packages
from imagegen.app.matrices import Matrices
from imagegen.app.session import Session
from imagegen.compat.answers import QuestionAnswer, answer
from imagegen.compat.facts import Fact, machine_of
from imagegen.compat.question import PinnedFile, Question, parse_words
from imagegen.compat.rule import Override, cuda_version
from imagegen.compat.vocabulary import Vocabulary, plain
from imagegen.core.errors import Location
from imagegen.projects.entry import TORCH, exact_version
from imagegen.projects.model import Omission, PackagePin, Recovered
from imagegen.spec.questions import vocabulary_of

_MOST_UNKNOWN = 8  # packages that the index is asked about because nothing is known of them


@dataclass(frozen=True)
class FileAnswer:
    """The answer about a file, and the packages of the file that were not examined."""

    answer: QuestionAnswer
    recovered: Recovered
    unknown: tuple[PackagePin, ...]  # of packages of which nothing is known
    unread: tuple[PackagePin, ...]  # of releases that are not known; others of the package are

    @property
    def examined(self) -> int:
        """The number of packages of the file that were examined."""
        return len(self.recovered.pins) - len(self.unknown) - len(self.unread)

    @property
    def locations(self) -> dict[str, tuple[Location, ...]]:
        """The lines of each package that no word of the question replaces."""
        requested = self.answer.question.requested
        return {pin.package: pin.places for pin in self.recovered.pins if requested.get(pin.package) == pin.specifier}

    @property
    def omissions(self) -> tuple[Omission, ...]:
        """The packages of the file that are not releases of an index, such as commits and directories."""
        return tuple(omission for omission in self.recovered.omissions if omission.is_package)


def answer_about_file(
    session: Session, source: Path, selection: Selection, words: Sequence[str], sets: Sequence[str], model: str
) -> FileAnswer:
    """Return the answer about the packages that a file installs on Linux, changed by words and `--set` options.

    The platform is linux/amd64, and the Python is one that the file admits, unless words name others. Raises
    ProjectFileError, LockError, UsageError, MatrixError.
    """
    matrices = session.matrices
    vocabulary = vocabulary_of(session.matrix, matrices.knowledge_files.harvested)
    typed = parse_words(words, sets, vocabulary, file=PinnedFile(str(source)))
    recovered, python = _recover(session, source, selection, typed, vocabulary)
    require_packages(recovered, Location(source), "it lists no package that can be examined")
    surroundings = [*_surroundings(matrices, vocabulary, recovered), f"python=={python}"]
    stated = parse_words(surroundings, (), vocabulary).requested
    pins = {pin.package: pin for pin in recovered.pins}
    known_names = [name for name in pins if vocabulary.packages.get(plain(name)) == name]
    unknown_names = sorted(pins.keys() - {*known_names})
    if recovered.direct or len(unknown_names) > _MOST_UNKNOWN:  # a resolver has judged their requirements; or too many
        unknown_names = []
    asked = {*(recovered.direct or pins), *vocabulary.labelled, *typed.requested}
    file = PinnedFile(
        str(source),
        direct=frozenset(recovered.direct),
        unread=frozenset(name for name in known_names if not _may_ask(matrices, pins[name], asked)),
        overrides=tuple(
            Override(pin.package, "", because=f"An override of {source.name}.") for pin in recovered.overrides
        ),
        extras={name: frozenset(pin.extras) for name, pin in pins.items() if pin.extras},
    )
    names = [*sorted(known_names, key=lambda name: (name not in vocabulary.labelled, name)), *unknown_names]
    while True:
        specifiers = {name: pins[name].specifier for name in names} | dict(stated)
        question_answer = answer(matrices, words, sets, model, file=replace(file, specifiers=specifiers))
        missing = {unknown.name for unknown in question_answer.question.unknown} & {*unknown_names}
        if missing.isdisjoint(names):
            break
        names = [name for name in names if name not in missing]  # the index does not have them, or does not answer
    return FileAnswer(question_answer, recovered, *_not_examined(matrices, recovered, question_answer))


def _recover(
    session: Session, source: Path, selection: Selection, typed: Question, vocabulary: Vocabulary
) -> tuple[Recovered, str]:
    """Return the packages of the file without the project's own ones, and the Python for which they are selected.

    An image of NVIDIA as the base decides the Python, and the question has its torch.
    """
    machine = machine_of(typed.facts)
    python = re.sub(r"^==(\d+\.\d+)(\.\d+)?$", r"==\1.*", typed.requested.get("python", ""))
    _, choice, recovered = recover(session, source, selection, python, machine)
    image = vocabulary.image(recovered.base_image)
    if image and not python:
        python = f"=={vocabulary.system(image.system).python}.*"
        _, choice, recovered = recover(session, source, selection, python, machine)
    pins = (pin for pin in recovered.pins if not (pin.directory or (image and pin.is_replaceable)))
    return replace(recovered, pins=tuple(map(_with_label, pins))), choice.value


def _with_label(pin: PackagePin) -> PackagePin:
    """Return the pin with the label of its wheel in the specifier."""
    is_labelled = pin.label and exact_version(pin.specifier)
    return replace(pin, specifier=f"{pin.specifier}+{pin.label}") if is_labelled else pin


def _may_ask(matrices: Matrices, pin: PackagePin, asked: Collection[str]) -> bool:
    """Return whether the pinned release is known, or may be asked of the index."""
    is_asked = pin.package in asked and pin.label is None
    return _is_read(matrices, pin) or (is_asked and matrices.knowledge_files.metadata.of(pin.package) is not None)


def _not_examined(
    matrices: Matrices, recovered: Recovered, question_answer: QuestionAnswer
) -> tuple[tuple[PackagePin, ...], tuple[PackagePin, ...]]:
    """Return the pins of packages of which nothing is known, and the pins of releases that are not known."""
    question, metadata = question_answer.question, matrices.knowledge_files.metadata
    unread = [
        pin
        for pin in recovered.pins
        if question.requested.get(pin.package, pin.specifier) == pin.specifier and not _is_read(matrices, pin)
    ]
    unknown = [pin for pin in unread if metadata.of(pin.package) is None]
    return tuple(unknown), tuple(pin for pin in unread if pin not in unknown)


def _surroundings(matrices: Matrices, vocabulary: Vocabulary, recovered: Recovered) -> Iterator[str]:
    """Yield the base image if it is known, and the CUDA that an index of PyTorch or the base's torch states."""
    if recovered.base_image and (vocabulary.meaning(recovered.base_image) or ("",))[0] == "base":
        yield f"base=={recovered.base_image}"
    torch = next((pin for pin in recovered.pins if pin.package == TORCH), None)
    labels = known_facts(matrices).indexes
    stated = next((label for address in recovered.indexes if (label := labels.get(address.rstrip("/")))), None)
    if stated and not (torch and "+" in torch.specifier):
        yield f"cuda=={cuda_version(stated) or stated}"
    elif recovered.cuda and torch and torch.is_replaceable and not vocabulary.image(recovered.base_image):
        yield f"cuda=={recovered.cuda[0]}"


def _is_read(matrices: Matrices, pin: PackagePin) -> bool:
    """Return whether a release that the pin admits is known, and for a wheel at an address its build."""
    releases = matrices.knowledge_files.metadata.of(pin.package)
    if releases is None or not releases.within(Fact.requested(pin.specifier)):
        return False
    version = exact_version(pin.specifier) if pin.label is not None else None
    return version is None or bool(pin.label and matrices.matrix.builds.build(pin.package, version.public, pin.label))
