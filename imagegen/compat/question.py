"""Parse a query about a combination: `torch==2.9.1 vllm==0.11.0 cu128 gpu==sm_120`, or a cell, changed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.version import Version

from imagegen.compat import atoms
from imagegen.compat.facts import Fact, Facts, machine_of
from imagegen.compat.rule import BASE_LIBRARIES, ENV, NO_CUDA, NO_GLIBC, Override, Rule, is_surrounding
from imagegen.compat.statements import MetadataCache, Statement
from imagegen.compat.systems import NgcImage
from imagegen.compat.torch_pins import LIBRARIES
from imagegen.compat.vocabulary import (
    WSL,
    CardHost,
    UnknownName,
    UnknownNameError,
    Vocabulary,
    cuda_of,
    is_variant,
    plain,
    python_of,
)
from imagegen.core.errors import UsageError
from imagegen.core.gpu import Gpu
from imagegen.core.types import parse_specifier

_WORD = re.compile(
    r"(?P<name>[A-Za-z0-9][\w ./:+-]*+)\s*+(?:\[(?P<extras>[\w\s,.-]+)\])?\s*(?P<specifier>[=<>!~].*)?", re.DOTALL
)
_EXAMPLE = "imagegen why torch==2.9.1 vllm==0.11.0 cuda==12.8 gpu==sm_120 python==3.12"
_VERSION = re.compile(r"[vR]?([0-9]+(?:\.[0-9]+)*(?:[._-]?[a-z]++[0-9]*)*(?:\+[\w.]+)?)", re.ASCII)
_NAMED_VERSION = re.compile(rf"(?P<name>[A-Za-z][\w.-]*)\s+{_VERSION.pattern}")
_CONNECTING = {"and", "for", "in", "on", "under", "using", "with"}  # words between names: "vllm 0.24 on H100"
_NEWEST = {"latest", "newest", "nightly", "stable"}
_LONGEST = 8  # words of one name: NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition
_PLATFORM = "linux/amd64"  # the default platform of a query


@dataclass(frozen=True)
class NamedCell:
    """The cell that a question is about, and the ids of the cells that differ from it only in the platform."""

    id: str
    facts: Facts
    by_platform: Mapping[str, str] = field(default_factory=dict)  # platform -> id
    by_id: bool = True  # its id was typed, and not the name of its image


@dataclass(frozen=True)
class PinnedFile:
    """The file of pins that a question is about. Words of the question replace its specifiers.

    Only the versions of the packages in `unread` count, since their pinned releases are not known.
    """

    path: str
    specifiers: Mapping[str, str] = field(default_factory=dict)  # package or surrounding -> specifier
    extras: Mapping[str, frozenset[str]] = field(default_factory=dict)
    direct: frozenset[str] = frozenset()  # packages that the project requires itself
    unread: frozenset[str] = frozenset()
    overrides: tuple[Override, ...] = ()


@dataclass(frozen=True)
class Question:
    """A parsed query. `requested` maps a package or surrounding to the text about it, in the order of the query."""

    requested: Mapping[str, str]  # name -> specifier, as it can be typed again
    facts: Facts
    cell: NamedCell | None = None
    file: PinnedFile | None = None
    unknown: tuple[UnknownName, ...] = ()  # among `requested`; the facts do not have them, so they reject nothing
    assumed: tuple[str, ...] = field(default=(), compare=False)  # sentences on what follows from names in the query
    image: NgcImage | None = None  # the base, if it is one of NVIDIA's
    short: frozenset[str] = frozenset()  # packages of NVIDIA that are named without their CUDA
    hosts: tuple[Rule, ...] = ()  # about the platform of the hosts of its cards
    model: str = ""  # the model type of a checkpoint
    vocabulary: Vocabulary | None = field(default=None, compare=False, repr=False)

    @property
    def is_unknown(self) -> bool:
        """Return whether the question has only unknown names."""
        facts = self.facts
        surroundings = self.requested.keys() & facts.names.keys()
        return not (facts.packages or facts.versions or facts.env or facts.gpus or surroundings)

    @property
    def specifiers(self) -> dict[str, str]:
        """Return the specifier of each requested name, and of the model type."""
        return {**self.requested, **({"model": f"=={self.model}"} if self.model else {})}

    def changed(self, changes: Mapping[str, str]) -> Question:
        """Return the question with other specifiers of some names. Its facts are not completed."""
        return self._with_specifiers({**self.requested, **changes})

    @property
    def direct(self) -> Question:
        """The question without the pins of its file that the project does not require itself, as a resolver chose them.

        A question without such a file is unchanged. Facts are not completed.
        """
        if self.file is None or not self.file.direct:
            return self
        resolved = self.file.specifiers.keys() - self.file.direct
        specifiers = {
            name: text
            for name, text in self.requested.items()
            if name not in resolved or is_surrounding(name) or text != self.file.specifiers[name]
        }
        return replace(self._with_specifiers(specifiers), file=replace(self.file, path="", specifiers={}))

    def _with_specifiers(self, specifiers: Mapping[str, str]) -> Question:
        assert self.vocabulary  # noqa: S101 - a question that was parsed has it
        parser = _QuestionParser(self.vocabulary, self.cell, self.file)
        for name, specifier in specifiers.items():
            parser.add(name, self.facts.extras.get(name, frozenset()), specifier)
        return replace(parser.question(by_id=True), model=self.model)

    def command(self, changes: Mapping[str, str] | None = None) -> str:
        """Return the command line that asks the question, with some specifiers changed."""
        words = self.words(changes)
        if self.cell:
            words = [self.cell.id, *(part for word in words for part in ("--set", word))]
        elif self.file and self.file.path:
            words = ["--lock", self.file.path, *words]
        return shlex.join(["imagegen", "why", *words])

    def words(self, changes: Mapping[str, str] | None = None) -> list[str]:
        """Return the words of the question, without the pins of its file, with some specifiers changed."""
        pins = self.file.specifiers if self.file else {}
        specifiers = {name: text for name, text in self.specifiers.items() if pins.get(name) != text}
        specifiers |= changes or {}
        return [f"{name}{self._extras(name)}{specifier}" for name, specifier in specifiers.items()]

    def _extras(self, name: str) -> str:
        return f"[{','.join(sorted(extras))}]" if (extras := self.facts.extras.get(name)) else ""


def parse_words(
    words: Sequence[str],
    sets: Sequence[str],
    vocabulary: Vocabulary,
    cell: NamedCell | None = None,
    file: PinnedFile | None = None,
) -> Question:
    """Return the question of the words and `--set` options, about a cell or a file if there is one.

    Raises UsageError.
    """
    if cell is None and file is None and sets:
        raise UsageError(
            "--set changes a cell, and none is named",
            code="usage-option-conflict",
            fix="imagegen why blackwell-vllm --set vllm=0.12.0",
        )
    parser = _QuestionParser(vocabulary, cell, file)
    for word in _joined([*words, *sets], vocabulary):
        if word.lower() in _NEWEST:
            raise UsageError(
                f"{word} is not a version: it changes from day to day",
                code="usage-invalid-value",
                fix="leave it out to ask about all releases, or name one, as in vllm==0.24.0",
            )
        if word.lower() not in _CONNECTING:
            parser.add(*_split(word))
    extras = file.extras if file else {}
    for name, specifier in file.specifiers.items() if file else ():
        if name not in parser.requested:
            parser.add(name, extras.get(name, frozenset()), specifier)
    if cell is None and file is None and not parser.requested:
        raise UsageError(
            "there is nothing to explain", code="usage-nothing-named", fix=f"name a cell, or versions: `{_EXAMPLE}`"
        )
    return parser.question(by_id=cell is not None and cell.by_id)


def missing_metadata(question: Question, metadata: MetadataCache) -> dict[str, str]:
    """Return normalised package -> specifier for the packages that the index should be asked about.

    These are unknown names, components without metadata that come from an index, and harvested packages of which a
    release that is pinned or required, or an extra, is not known.
    """
    missing: dict[str, str] = {}
    from_sources = question.vocabulary.from_sources if question.vocabulary else frozenset()
    for unknown_name in question.unknown:
        from packaging.utils import canonicalize_name, is_normalized_name  # late, as below: few questions need it

        name = canonicalize_name(unknown_name.name)
        if unknown_name.kind == "component" and is_normalized_name(name):
            missing[name] = question.requested.get(unknown_name.name, "")
    for package, fact in question.facts.packages.items():
        releases, specifier = metadata.of(package), question.requested.get(package)
        if specifier is None or fact.built:
            continue
        if (specifier and not releases.within(fact)) if releases else package not in from_sources:
            missing[package] = specifier.partition("+")[0]
    for statement in requirements(question, metadata):
        required = metadata.of(statement.name)
        if required and statement.name not in missing and not any(map(required.fitting, statement.choices)):
            missing[statement.name] = statement.choices[0]
    return missing | {name: question.requested[name].partition("+")[0] for name in missing_extras(question, metadata)}


def requested_extras(question: Question, metadata: MetadataCache) -> dict[str, frozenset[str]]:
    """Return package -> its extras that the question requests, or a requirement of one of its packages."""
    extras = dict(question.facts.extras)
    for statement in requirements(question, metadata):
        if statement.extras:
            extras[statement.name] = extras.get(statement.name, frozenset()) | statement.extras
    return extras


def missing_extras(question: Question, metadata: MetadataCache) -> dict[str, list[str]]:
    """Return package -> the extras that the question requests of it and that no release in question is known to have.

    An installer ignores them. Packages without such an extra, or without a known release in question, are absent.
    """
    missing = {}
    for name in question.requested.keys() & question.facts.extras.keys():
        fact, releases = question.facts.packages.get(name), metadata.of(name)
        if fact and releases and not fact.built and (among := releases.within(fact)):
            missing[name] = releases.lacking(among, question.facts.extras[name])
    return {name: extras for name, extras in missing.items() if extras}


def required_by_others(question: Question, metadata: MetadataCache) -> frozenset[str]:
    """Return the named packages that some release in question of another named one requires."""
    statements = requirements(question, metadata, some=True)
    return frozenset(statement.name for statement in statements) & question.facts.packages.keys()


def requirements(question: Question, metadata: MetadataCache, *, some: bool = False) -> Iterator[Statement]:
    """Yield the statements of all releases in question of a named package, or of `some`, if their marker holds."""
    facts, machine = question.facts, machine_of(question.facts)
    pythons = list(map(str, atoms.pythons(facts.versions.get("python"), ())))
    for name, fact in facts.packages.items():
        releases = None if fact.built else metadata.of(name)
        if releases is None:
            continue
        among = releases.within(fact)
        for statement in releases.statements(among, machine, facts.extras.get(name, frozenset())):
            if (some or statement.releases == among) and any(
                releases.holding(statement.marker, statement.extra, pythons, machine)
            ):
                yield statement


def _joined(words: Sequence[str], vocabulary: Vocabulary) -> Iterator[str]:
    """Yield words, names of several words as one: `RTX 5090` without quotes comes as two.

    Words that can be read as several names are not joined to one of a package: vllm flash-attn, not vllm-flash-attn.
    """
    position = 0
    while position < len(words):
        lengths = range(_LONGEST, 1, -1)
        length = next((n for n in lengths if _together(words[position : position + n], n, vocabulary)), 0)
        length = length or _with_version(words[position : position + 2], vocabulary)
        length = length or _unknown_card(words[position:], vocabulary)
        yield " ".join(words[position : position + length])
        position += length


def _together(words: Sequence[str], length: int, vocabulary: Vocabulary) -> bool:
    value = " ".join(words).rpartition("=")[2]
    meant = vocabulary.meaning(value) if len(words) == length and all(map(_plain_word, words[1:])) else None
    return meant is not None and (is_surrounding(meant[0]) or not _are_names(words, vocabulary))


def _are_names(words: Sequence[str], vocabulary: Vocabulary) -> bool:
    """Return whether the words can be read as several names."""
    starts = (length for length in range(1, len(words)) if vocabulary.meaning(" ".join(words[:length])))
    return any(
        vocabulary.meaning(" ".join(words[length:])) or _are_names(words[length:], vocabulary) for length in starts
    )


def _with_version(words: Sequence[str], vocabulary: Vocabulary) -> int:
    """Return 2 for a name and its version as two words, "torch 2.8", and 0 for others; one number may be a GPU's."""
    if len(words) < 2 or not _plain_word(words[0]) or not _VERSION.fullmatch(words[1]):
        return 0
    is_name = is_surrounding(words[0].lower()) or plain(words[0]) in vocabulary.packages
    dotted = re.match(r"[vR]?[0-9]+\.", words[1]) and not re.fullmatch(r"[0-9.]+", words[0])
    return 2 if is_name or dotted else 0


def _unknown_card(words: Sequence[str], vocabulary: Vocabulary) -> int:
    """Return of how many words the name of a GPU consists that is not known: "GTX 1080 Ti"; 1 if it is not a GPU."""
    name = words[0].rpartition("=")[2]
    if len(words) == 1 or not re.fullmatch(r"[0-9]{3,4}", words[1]):
        return 1
    if is_surrounding(name.lower()) or vocabulary.meaning(name):
        return 1
    return 3 if words[2:] and is_variant(words[2]) else 2


def _plain_word(word: str) -> bool:
    return re.fullmatch(r"[\w .-]+", word) is not None


class _QuestionParser:
    def __init__(self, vocabulary: Vocabulary, cell: NamedCell | None, file: PinnedFile | None = None) -> None:
        self.vocabulary = vocabulary
        self.cell = cell
        self.file = file
        self.requested: dict[str, str] = {}
        self.packages: dict[str, Fact] = {}
        self.versions: dict[str, Fact] = {}
        self.names: dict[str, str] = {}
        self.env: dict[str, str] = {}
        self.gpus: tuple[Gpu, ...] = ()
        self.products: list[str] = []  # the typed names of `gpus`
        self.assumed: list[str] = []
        self.image: NgcImage | None = None
        self.image_facts: dict[str, Fact] = {}  # of the image, if the query names nothing else
        self.extras: dict[str, frozenset[str]] = {}
        self.cards: dict[str, UnknownName] = {}  # the unknown names of GPUs
        self.unknown: dict[str, UnknownName] = {}
        self.short: set[str] = set()

    def add(self, name: str, extras: frozenset[str], specifier: str) -> None:
        if re.fullmatch(r"[0-9]+(\.[0-9]+)+", name):
            raise UsageError(
                f'"{name}" is a version without a name', code="usage-invalid-value", fix=f"for example `{_EXAMPLE}`"
            )
        if not specifier and not extras and not is_surrounding(name.lower()):
            meant = self.vocabulary.meaning(name)
            if meant is None and (self.vocabulary.gpus.reason(name) or self.vocabulary.gpus.suggestion(name)):
                self.unknown[name] = self.vocabulary.unknown_gpu(name)
                self.requested[name] = ""
                return
            first = self.vocabulary.meaning(name.partition(" ")[0])
            if meant and first not in {None, meant} and not is_surrounding(meant[0]):
                self.assumed.append(f'"{name}" is the package {meant[0]}')
            name, specifier = meant or _named_version(name, self.vocabulary) or (name, "")
        if name.lower().startswith(ENV):
            self._variable(name[len(ENV) :], specifier)
        elif is_surrounding(name.lower()):
            self._surrounding(name.lower(), specifier)
        else:
            self._package(name, specifier, extras)

    def _package(self, name: str, specifier: str, extras: frozenset[str]) -> None:
        try:
            package = self.vocabulary.package(name)
        except UnknownNameError as error:
            self.unknown[name], package = error.unknown, name
        specifier = ",".join(part for part in (self.requested.get(package, ""), _double(specifier)) if part)
        try:
            parse_specifier(specifier)
        except ValueError as error:
            raise UsageError(str(error), code="usage-invalid-value", where=f"{package}{specifier}") from error
        if package in LIBRARIES and plain(name) != plain(package):
            self.short.add(package)
        self.requested[package] = specifier
        if extras:
            self.extras[package] = self.extras.get(package, frozenset()) | extras
        if package in self.unknown:
            return
        release = "" if specifier and package not in self.vocabulary.labelled else None  # PyPI's have no label
        fact = Fact.requested(specifier, release)
        is_unread = self.file is not None and package in self.file.unread
        self.packages[package] = replace(fact, built=True) if is_unread else fact

    def _variable(self, name: str, specifier: str) -> None:
        if not name:
            raise UsageError("env. of what variable?", code="usage-invalid-value", fix="for example env.VLLM_USE_V1==0")
        if specifier and not specifier.startswith("="):
            raise UsageError(
                f"{ENV}{name} takes ==, not a range", code="usage-invalid-value", where=f"{ENV}{name}{specifier}"
            )
        self.env[name] = value = specifier.lstrip("=")
        self.requested[f"{ENV}{name}"] = f"=={value}"

    def _surrounding(self, name: str, specifier: str) -> None:
        if name in self.requested and name != "gpu":
            raise UsageError(f"{name} is given twice", code="usage-invalid-value", fix="ask about one value at a time")
        if name == "driver":
            specifier = re.sub(r"(?<![0-9])[rR](?=[0-9])", "", specifier)  # R570, as NVIDIA calls a branch
        value = specifier.lstrip("=").strip() if specifier.startswith("=") else None
        if not specifier or value == "":
            raise UsageError(f"{name} of what version?", code="usage-invalid-value", fix=f"for example `{_EXAMPLE}`")
        self.requested[name] = _double(specifier)
        if name in {"gpu", "base", "platform"}:
            if value is None:
                raise UsageError(
                    f"{name} takes ==, not a range", code="usage-invalid-value", where=f"{name}{specifier}"
                )
            self._named(name, value)
        elif name == "cuda" and value == NO_CUDA:
            self.names["cuda"] = NO_CUDA
        else:
            self.versions[name] = fact = _of_surrounding(name, specifier, value)
            if value is not None:
                self.requested[name] = f"=={fact.text}"

    def _named(self, name: str, value: str) -> None:
        if name == "gpu":
            for gpu_name in value.split(","):
                self._gpu(gpu_name.strip())
            self.requested["gpu"] = f"=={','.join([*(gpu.name for gpu in self.gpus), *self.cards])}"
        elif name == "base" and (image := self.vocabulary.image(value)):
            self._image(image)
        elif name == "base":
            self._base(value)
        else:
            self._platform(value)

    def _platform(self, name: str) -> None:
        try:
            self.names["platform"] = self.vocabulary.platform(name)
        except UnknownNameError as error:
            if not error.unknown.reason:
                raise
            self.unknown[name] = error.unknown
            return
        self.requested["platform"] = f"=={self.names['platform']}"
        if plain(name) in WSL:
            self.assumed.append("platform linux/amd64: WSL 2 runs Linux; the GPU driver is that of Windows")

    def _gpu(self, name: str) -> None:
        try:
            self.gpus = tuple(dict.fromkeys([*self.gpus, *self.vocabulary.gpu(name)]))
            self.products.append(name)
        except UnknownNameError as error:
            self.unknown[name] = self.cards[name] = error.unknown

    def question(self, *, by_id: bool) -> Question:
        """Return the question of all names that were added; with `by_id` the id of its cell was typed.

        For a cell, it has the cell's facts unless a word of the query changes them.
        """
        hosts, cell = self._hosts(by_id=by_id), self.cell
        self.versions = {**self.image_facts, **self.versions}
        requested_torch = self.packages.get("torch")
        if self.image and (requested_torch is None or Version(self.image.torch) in requested_torch.range):
            torch = replace(Fact.requested(f"=={self.image.torch}"), built=True)
            self.packages = {**self.packages, "torch": torch}
        return Question(
            self.requested,
            self._facts_of_cell(cell.facts) if cell else self._facts(),
            cell,
            self.file,
            tuple(self.unknown[name] for name in sorted(self.unknown)),
            tuple(self.assumed),
            self.image,
            frozenset(self.short),
            tuple(host.rule(cell.by_platform if cell else {}) for host in hosts),
            vocabulary=self.vocabulary,
        )

    def _hosts(self, *, by_id: bool) -> tuple[CardHost, ...]:
        """Return the hosts that restrict the platform; if it is open, take the platform of all hosts and return none.

        The id of a cell names its platform. If the question names a platform, a card for PCIe slots fits it.
        """
        hosts = [host for name in self.products if (host := self.vocabulary.gpus.host(name))]
        if "platform" in self.requested:
            return tuple(host for host in hosts if host.is_only)
        platforms = {host.platform for host in hosts}
        if by_id:
            return tuple(hosts) if len(platforms) == 1 else ()
        if len(platforms) != 1 or len(hosts) < len(self.products):
            return ()
        platform = platforms.pop()
        if platform != (self.cell.facts.names["platform"] if self.cell else _PLATFORM):
            self.names["platform"] = platform
            self.requested["platform"] = f"=={platform}"
            self.assumed.append(f"platform {platform}: {replace(hosts[0], card=', '.join(self.products))}")
        return ()

    def _base(self, name: str) -> None:
        try:
            system = self.vocabulary.system(name)
        except UnknownNameError as error:
            self.unknown[name] = error.unknown
            return
        self.requested["base"] = f"=={system.name}"
        self.names["base"] = system.name
        glibc = Fact.exactly(system.glibc)
        if system.glibc == NO_GLIBC:
            glibc = replace(glibc, text="none (musl)")
            self.assumed.append(f"base {system.name}: it has musl, and wheels with a manylinux tag need glibc")
        self.versions.setdefault("glibc", glibc)
        if system.libstdcxx:
            self.versions.setdefault("libstdcxx", Fact.exactly(system.libstdcxx))

    def _image(self, image: NgcImage) -> None:
        """Take the facts of an image of NVIDIA, except about names that the query has."""
        self._base(image.system)
        self.requested["base"] = f"==nvidia/pytorch:{image.tag}"
        python = self.vocabulary.system(image.system).python
        self.image_facts = {
            "python": replace(Fact.within(f"~={python}.0"), text=python),
            "cuda": Fact.exactly(image.cuda),
        }
        self.image = image
        self.assumed.append(
            f"base nvidia/pytorch:{image.tag}: {image.system}, Python {python}, CUDA {image.cuda}, NVIDIA's own "
            f"torch {image.torch}"
        )

    def _facts(self) -> Facts:
        names, env = {"platform": _PLATFORM} | self.names, self.env or None
        facts = Facts(self.packages, self.versions, names, closed=False, env=env, gpus=self.gpus, extras=self.extras)
        return replace(facts, overrides=self.file.overrides) if self.file else facts

    def _facts_of_cell(self, facts: Facts) -> Facts:
        versions, names = {**facts.versions, **self.versions}, {**facts.names, **self.names}
        if "cuda" in self.versions:
            names.pop("cuda", None)
        elif "cuda" in self.names:
            versions.pop("cuda", None)
        packages = {
            **(self._unlabelled(facts.packages) if "cuda" in self.requested else facts.packages),
            **self.packages,
        }
        env = {**(facts.env or {}), **self.env}
        if "base" in self.requested and "base" not in self.names:
            names.pop("base")
            for name in set(BASE_LIBRARIES) - self.requested.keys():
                versions.pop(name, None)
        gpus = self.gpus if "gpu" in self.requested else facts.gpus
        gpus = () if names.get("cuda") == NO_CUDA else gpus
        extras = {**facts.extras, **self.extras}
        return replace(facts, packages=packages, versions=versions, names=names, env=env, gpus=gpus, extras=extras)

    def _unlabelled(self, packages: Mapping[str, Fact]) -> dict[str, Fact]:
        """Remove labels, since another CUDA version has others; a package with one build on PyPI stays that build."""
        several = self.vocabulary.labelled
        return {name: replace(fact, local=None) if name in several else fact for name, fact in packages.items()}


def _split(word: str) -> tuple[str, frozenset[str], str]:
    match = _WORD.fullmatch(word.strip())
    if not match:
        raise UsageError(
            f'"{word}" is not of the form name==version', code="usage-invalid-value", fix=f"for example `{_EXAMPLE}`"
        )
    extras = _extras(match["extras"]) if match["extras"] else frozenset[str]()
    return match["name"].rstrip(), extras, (match["specifier"] or "").strip()


def _extras(listed: str) -> frozenset[str]:
    from packaging.utils import canonicalize_name

    return frozenset(canonicalize_name(extra.strip()) for extra in listed.split(",") if extra.strip())


def _named_version(words: str, vocabulary: Vocabulary) -> tuple[str, str] | None:
    """Return name and specifier of "torch 2.8", which is any 2.8.x; "torch 2.8.0" is that release."""
    match = _NAMED_VERSION.fullmatch(words)
    if not match or not _with_version([match["name"], match[2]], vocabulary):
        return None
    name, version = match["name"], match[2]
    whole = is_surrounding(name.lower()) or not re.fullmatch(r"[0-9]+(\.[0-9]+)?", version)
    return name, f"=={version}" if whole else f"=={version}.*"


def _double(specifier: str) -> str:
    """Return a specifier with "==" for "=": users write `=0.12.0` after --set."""
    return f"={specifier}" if re.match(r"=[^=]", specifier) else specifier


def _of_surrounding(name: str, specifier: str, value: str | None) -> Fact:
    """Return a version of CUDA, Python, glibc, libstdc++ or the driver, each in its own spelling."""
    try:
        if value is not None:
            if name == "python" and (minor := python_of(value)):
                return replace(Fact.within(f"~={minor}.0"), text=minor)
            if name == "cuda" and (version := cuda_of(value)):
                return Fact.exactly(version)
            if re.fullmatch(r"[0-9]+", value):  # a branch of the driver, a major version of CUDA
                return replace(Fact.within(f"=={value}.*"), text=value)
            if re.fullmatch(r"[0-9]+(\.[0-9]+)+", value):
                return Fact.exactly(value)
        parse_specifier(_double(specifier))
    except ValueError as error:
        raise UsageError(str(error), code="usage-invalid-value", where=f"{name}{specifier}") from error
    return Fact.within(_double(specifier))
