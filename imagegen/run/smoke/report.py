"""The report of a smoke test, with the results of its checks and its conditions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
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
    log: str = ""  # the end of its stderr, if it did not pass

    @property
    def failed(self) -> bool:
        return self.status not in ("pass", "skip")

    @property
    def note(self) -> str:
        """The parts that a passed check left out, or ""."""
        text = self.details.get("note")
        return text if isinstance(text, str) else ""

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
        """Return whether no check failed and at least one passed: a report with only skips verifies nothing."""
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

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> SmokeReport:
        """Inverse of `as_dict`."""
        return cls(fields["image"], fields["cell"], tuple(CheckResult(**check) for check in fields["checks"]))

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON: {"image", "cell", "passed", "counts", "checks": [fields of CheckResult, ...]}."""
        checks = [asdict(result) for result in self.results]
        return {"image": self.image, "cell": self.cell, "passed": self.passed, "counts": self.counts, "checks": checks}

    def junit(self, suite: str) -> str:
        """JUnit XML, one test suite named `suite`: a failure per failed check, an error per crash.

        The format is the schema that Jenkins' xunit plugin and GitLab read (testsuites/testsuite/testcase).
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


@dataclass(frozen=True)
class SmokeConditions:
    """An engine and its machine, as far as results of smoke checks depend on them."""

    identity: str
    may_have_gpus: bool

    @classmethod
    def of(cls, info: Mapping[str, Any], devices: Sequence[str]) -> SmokeConditions:
        """Return the conditions of an engine (`info` as its API gives it) and of this machine's NVIDIA `devices`."""
        runtimes = sorted(info.get("Runtimes") or {})
        discovered = sorted(str(device) for device in info.get("DiscoveredDevices") or ())  # CDI, from Docker 28 on
        versions = [str(info.get(name)) for name in ("ID", "ServerVersion", "KernelVersion", "DefaultRuntime")]
        may_have_gpus = bool(devices) or any("nvidia" in name for name in (*runtimes, *discovered))
        return cls(json.dumps([versions, runtimes, discovered, list(devices)]), may_have_gpus)


def nvidia_devices() -> list[str]:
    """Return the NVIDIA GPUs of this machine, and their driver."""
    devices = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    with suppress(OSError):
        devices.append(Path("/proc/driver/nvidia/version").read_text(encoding="utf-8"))
    return devices


class SmokeFailed(SmokeError):
    """A failed smoke test with its report, so that the command line can print all of it."""

    code = "smoke-failed"

    def __init__(self, message: str, report: SmokeReport, *, fix: str) -> None:
        super().__init__(message, fix=fix)
        self.report = report


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
