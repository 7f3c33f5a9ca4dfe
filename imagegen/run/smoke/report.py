"""The results of the smoke checks as data, JSON and JUnit XML."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

from imagegen.core.errors import SmokeError

STATUSES = ("pass", "skip", "fail", "crash")

# XML 1.0, section 2.2: characters that no document may hold, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class CheckResult:
    """One check's answer. `status` is one of STATUSES; a crash is death by signal, which `reason` names."""

    check: str
    status: str
    seconds: float
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    log: str = ""  # the end of its stderr, where it did not pass

    @property
    def failed(self) -> bool:
        return self.status not in ("pass", "skip")

    @property
    def note(self) -> str:
        """The limits of a check that passed: what it did without, or did not try; "" if nothing."""
        said = self.details.get("note")
        return said if isinstance(said, str) else ""

    @property
    def explanation(self) -> str:
        """The reason of the status, or else the note."""
        return self.reason or self.note


@dataclass(frozen=True)
class SmokeReport:
    """All results for one image, in the order the checks ran."""

    image: str
    cell: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Return whether no check failed and at least one passed: a report of skips alone verifies nothing."""
        return not any(r.failed for r in self.results) and any(r.status == "pass" for r in self.results)

    def require_passed(self, *, fix: str) -> None:
        """Raise SmokeFailed unless the report passed."""
        if not self.passed:
            names = ", ".join(result.check for result in self.results if result.failed) or "no check ran"
            raise SmokeFailed(f"smoke checks failed: {names}", self, fix=fix)

    @property
    def counts(self) -> dict[str, int]:
        """Status -> how many, each of STATUSES."""
        counted = Counter(result.status for result in self.results)
        return {status: counted[status] for status in STATUSES}

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON: {"image", "cell", "passed", "counts", "checks": [fields of CheckResult, ...]}."""
        checks = [asdict(result) for result in self.results]
        return {
            "image": self.image,
            "cell": self.cell,
            "passed": self.passed,
            "counts": self.counts,
            "checks": checks,
        }

    def junit(self, suite: str) -> str:
        """JUnit XML, one test suite named `suite`: a failure per failed check, an error per crash.

        Format: the schema that Jenkins' xunit plugin and GitLab read (testsuites/testsuite/testcase).
        """
        counts = self.counts
        totals = {
            "tests": str(len(self.results)),
            "failures": str(counts["fail"]),
            "errors": str(counts["crash"]),
            "skipped": str(counts["skip"]),
            "time": f"{sum(result.seconds for result in self.results):.2f}",
        }
        root = ET.Element("testsuites", totals)
        group = ET.SubElement(root, "testsuite", {"name": _xml(suite), **totals})
        for result in self.results:
            attributes = {"classname": _xml(suite), "name": _xml(result.check), "time": f"{result.seconds:.2f}"}
            case = ET.SubElement(group, "testcase", attributes)
            kind = {"skip": "skipped", "fail": "failure", "crash": "error"}.get(result.status)
            if kind:
                ET.SubElement(case, kind, {"message": _xml(result.reason)}).text = _xml(result.log)
            elif result.note:
                ET.SubElement(case, "system-out").text = _xml(result.note)
        ET.indent(root)
        document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
        return document.decode() + "\n"


class SmokeFailed(SmokeError):
    """A failed smoke test with its report, so that the command line can print all of it."""

    code = "smoke-failed"

    def __init__(self, what: str, report: SmokeReport, *, fix: str) -> None:
        super().__init__(what, fix=fix)
        self.report = report


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
