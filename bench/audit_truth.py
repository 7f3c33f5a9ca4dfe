"""The audit's verdicts beside what the loader did: confusion tables.

    python bench/audit_truth.py [--misses]

Reads what bench/audit_truth_load.py wrote down, so nothing is downloaded or loaded. For each wheel and each torch the
audit gets what an image with the two would hold. Its verdict on the wheel is "broken" if it has an error for it, and on
a file if an error names the file. --misses lists each case in which the two do not agree.
"""

from __future__ import annotations

import json
import lzma
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from audit_truth_load import DATA, TUNED

from imagegen.audit import libraries, symbols, torch_rule
from imagegen.audit.closure import Loader
from imagegen.audit.model import Elf, File, Finding, Package, Severity, Subject, SystemLibraries

SETS = frozenset({"undefined", "exported", "provides"})
TORCH = re.compile(r"lib(torch|c10)")
# A library that is neither torch's nor CUDA's is the machine's to have: that it is absent says nothing of torch.
OURS = re.compile(r"lib(torch|c10|cudart|cublas|cudnn|cufft|cupti|curand|cusolver|cusparse|nccl|nvrtc|nvJitLink)")


# What tells the builds of one file for several releases of CUDA or torch apart.
VARIANT = re.compile(r"_?cu(?:da)?\d+|[-_]cpu(?=\.)|(?<=torch)\d+|(?:_\d+){2,3}(?=\.)")
OTHER_PYTHON = re.compile(r"\.cpython-(?!311-)")


@dataclass(frozen=True)
class Case:
    """One wheel beside one torch."""

    wheel: str
    torch: str
    files: Mapping[str, Elf]
    said: Mapping[str, str]  # file -> "ok", or what the loader said
    errors: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    imports: Mapping[str, str]

    @property
    def tuned(self) -> bool:
        return self.wheel.partition("==")[0] in TUNED

    @cached_property
    def outcome(self) -> Mapping[str, str]:
        """For each file "ok", "broken", or why it is not counted."""
        return {path: self._outcome(path, said) for path, said in self.said.items()}

    def _outcome(self, path: str, said: str) -> str:
        if OTHER_PYTHON.search(path):
            return "for another Python"
        # A library that needs what its users bring is fine where one of them loads.
        users = (user for user, elf in self.files.items() if path.rpartition("/")[2] in elf.needed)
        if said == "ok" or any(self.said.get(user) == "ok" for user in users):
            return "ok"
        alike = [other for other in self.said if other != path and _unmarked(other) == _unmarked(path)]
        if any(self.said[other] == "ok" for other in alike):
            return "a variant"
        absent = re.search(r"([^/\s]+): cannot open shared object file", said)
        return "undecided" if absent and not OURS.match(absent[1]) else "broken"

    @cached_property
    def named(self) -> frozenset[str]:
        """Files that an error names, and those that are linked with such a file."""
        reported = {path for error in self.errors for path in (error.path, *map(_path, error.details))}
        named = {path for path in self.files if path in reported}
        while True:
            names = {path.rpartition("/")[2] for path in named}
            more = {path for path, elf in self.files.items() if names.intersection(elf.needed)} - named
            if not more:
                return frozenset(named)
            named |= more

    @property
    def broken(self) -> bool:
        return "broken" in self.outcome.values()

    @property
    def flagged(self) -> bool:
        """True if an error names a file that could be loaded here: others lack a library that a machine may have."""
        return any(self.outcome.get(path) not in (None, "undecided") for path in self.named)

    @property
    def undecided(self) -> bool:
        """True if the audit has errors, and all for files that could not be loaded here."""
        return bool(self.named) and not self.flagged and not self.broken

    @property
    def linked(self) -> frozenset[str]:
        return frozenset(path for path in self.said if any(map(TORCH.match, self.files[path].needed)))


def _path(detail: str) -> str:
    return detail.partition(": ")[0]


def _unmarked(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/{VARIANT.sub('', name)}"


def cases() -> Iterator[Case]:
    reported = json.loads((DATA / "outcomes.json").read_text())
    known = json.loads(lzma.decompress((DATA / "files.json.xz").read_bytes()))
    groups = {name: {path: file(row) for path, row in group.items()} for name, group in known["files"].items()}
    loads: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    imports: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for row in reported["loads"]:
        module = row.get("module", "ok")  # a module that raises is loaded, and wants its package
        loads[row["wheel"], row["torch"]][row["file"]] = module if module.startswith("SIG") else row["load"]
    for row in reported["imports"]:
        imports[row["wheel"], row["torch"]][row["module"]] = row["import"]
    system = system_of(known["files"]["system"], groups["system"])
    beside = {torch: list(torch_and_its_own(torch, groups[f"torch=={torch}"])) for _, torch in loads}
    for (wheel, torch), files in loads.items():
        name, _, version = wheel.partition("==")
        said = known["packages"][wheel]
        package = Package(name, version, groups[wheel], tuple(said["requires"]), tuple(said["tags"]))
        packages = tuple(sorted((package, *beside[torch]), key=lambda each: each.name))
        subject = Subject(wheel, packages, system=system, python="3.11", cuda=True)
        loader = Loader(subject)
        everything = (torch_rule.check(subject), symbols.check(loader), libraries.check(loader))
        found = [each for findings in everything for each in findings if each.package == str(package)]
        errors = tuple(each for each in found if each.severity is Severity.ERROR)
        warnings = tuple(each for each in found if each.severity is Severity.WARNING)
        elves = {path: each.elf for path, each in groups[wheel].items() if each.elf}
        yield Case(wheel, torch, elves, files, errors, warnings, imports[wheel, torch])


def file(row: Mapping[str, Any]) -> File:
    fields: dict[str, Any] = {
        key: frozenset(value) if key in SETS else tuple(value) if isinstance(value, list) else value
        for key, value in row.items()
        if key != "path"
    }
    fields["requires"] = {name: frozenset(nodes) for name, nodes in row.get("requires", {}).items()}
    return File(size=0, elf=Elf(**fields))


def system_of(rows: Mapping[str, Any], files: Mapping[str, File]) -> SystemLibraries:
    there = {name: each for name, each in files.items() if name != "python"}
    return SystemLibraries(there, {name: rows[name]["path"] for name in there}, interpreter=files["python"])


def torch_and_its_own(torch: str, files: Mapping[str, File]) -> Iterator[Package]:
    """The packages that pip installs with a torch, by their folders."""
    tops: dict[str, dict[str, File]] = defaultdict(dict)
    for path, each in files.items():
        tops[path.partition("/")[0]][path] = each
    for top, inside in tops.items():
        yield Package(top, torch if top == "torch" else "0", inside)


def table(title: str, rows: Mapping[str, Iterator[tuple[bool, bool]]]) -> None:
    print(f"{title}\n{'':28}{'broken, found':>14}{'sound, flagged':>16}{'sound, passed':>15}{'broken, missed':>16}")
    for name, pairs in rows.items():
        counts = Counter(pairs)
        cells = (counts[True, True], counts[False, True], counts[False, False], counts[True, False])
        print(f"{name:28}{cells[0]:>14}{cells[1]:>16}{cells[2]:>15}{cells[3]:>16}")
    print()


def of_wheels(all_: list[Case]) -> Iterator[tuple[bool, bool]]:
    return ((case.broken, case.flagged) for case in all_ if not case.undecided)


def of_files(all_: list[Case], *, linked: bool) -> Iterator[tuple[bool, bool]]:
    for case in all_:
        for path, outcome in case.outcome.items():
            if (path in case.linked) is linked and outcome in ("ok", "broken"):
                yield outcome == "broken", path in case.named


def main(*, misses: bool) -> None:
    every = list(cases())
    plain = [case for case in every if not case.torch.endswith("+cpu")]
    by = {
        "all": plain,
        "tuned on these packages": [case for case in plain if case.tuned],
        "never looked at before": [case for case in plain if not case.tuned],
        "all, torch without CUDA": [case for case in every if case not in plain],
    }
    table("Wheels (one wheel beside one torch)", {name: of_wheels(some) for name, some in by.items()})
    table("Files linked with torch", {name: of_files(some, linked=True) for name, some in by.items()})
    table("Other files", {name: of_files(some, linked=False) for name, some in by.items()})
    table("Packages that import as far as to their libraries", {name: of_imports(some) for name, some in by.items()})
    left_out = Counter(
        outcome for case in every for outcome in case.outcome.values() if outcome not in ("ok", "broken")
    )
    print(f"Wheels not counted: {sum(case.undecided for case in every)} open")
    print("Files not counted: " + ", ".join(f"{count} {why}" for why, count in sorted(left_out.items())) + "\n")
    matrix(every)
    if misses:
        for case in every:
            explain(case)


def of_imports(all_: list[Case]) -> Iterator[tuple[bool, bool]]:
    for case in all_:
        ends = {import_ends(said) for said in case.imports.values()} - {None}
        if ends and not case.undecided:
            yield "broken" in ends, case.flagged


def import_ends(said: str) -> str | None:
    """None where the import wanted a package or a library that is not there, which says nothing of torch."""
    absent = re.search(r"([^/\s]+): cannot open shared object file", said)
    if said == "ok":
        return "ok"
    return (
        "broken" if said.startswith("SIG") or "undefined symbol" in said or (absent and OURS.match(absent[1])) else None
    )


def matrix(every: list[Case]) -> None:
    """Wheel by torch: files that do not load of those that were judged, and what the audit says."""
    torches = list(dict.fromkeys(case.torch for case in every))
    print(f"{'':40}" + "".join(f"{torch:>14}" for torch in torches))
    for wheel in dict.fromkeys(case.wheel for case in every):
        row = {case.torch: case for case in every if case.wheel == wheel}
        print(f"{wheel:40}" + "".join(f"{mark(row[torch]):>14}" for torch in torches))


def mark(case: Case) -> str:
    counts = Counter(case.outcome.values())
    reported = {(True, True): "found", (True, False): "MISSED", (False, True): "FLAGGED", (False, False): "ok"}
    verdict = "open" if case.undecided else reported[case.broken, case.flagged]
    return f"{counts['broken']}/{counts['broken'] + counts['ok']} {verdict}"


def explain(case: Case) -> None:
    for path, outcome in case.outcome.items():
        if (outcome, path in case.named) in (("broken", False), ("ok", True), ("a variant", True)):
            kind = "missed" if outcome == "broken" else f"flagged, {outcome}"
            print(f"\n{kind}: {case.wheel} on torch {case.torch}: {path}: {case.said[path]}")
            for error in case.errors:
                print(f"    {error.id}: {error.path}: {error.evidence}")


if __name__ == "__main__":
    main(misses="--misses" in sys.argv[1:])
