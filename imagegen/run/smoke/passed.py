"""Store passed smoke reports, and find one that still applies to an image.

A report applies to an image (by digest), to the smoke programs with all their inputs, and to a run with or without a
GPU. While these are the same, no check needs to run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imagegen.checks.smoke.table import applicable
from imagegen.core.store import Store
from imagegen.core.store.cache import Cache
from imagegen.image.layers.plan import digest_of_json
from imagegen.lock.model import Lock
from imagegen.oci.documents import digest_of
from imagegen.run.smoke.report import SmokeConditions, SmokeReport
from imagegen.run.smoke.runner import check_name, files, files_for, parts, spec
from imagegen.spec.model import Declarations


@dataclass(frozen=True)
class SmokeRequirement:
    """A required smoke test of an image digest with the programs of a digest (`programs_digest`), on a GPU or not."""

    image: str
    programs: str
    gpu: bool

    @classmethod
    def of(cls, image: str, lock: Lock, declared: Declarations, *, require_gpu: bool) -> SmokeRequirement:
        """Return the requirement for a lock's image; `require_gpu` has no effect if no check needs a GPU."""
        return cls(image, programs_digest(lock, declared), require_gpu and bool(_gpu_checks(lock)))


@dataclass(frozen=True)
class PassedSmokeReport:
    """A smoke report without a failed check. `programs` is the digest of the smoke programs.

    Attached to the image and signed, it is the predicate of a test attestation.
    """

    image: str
    programs: str
    gpu: bool  # whether the checks that need a GPU had one
    report: Mapping[str, Any]  # as `SmokeReport.as_dict` returns it

    def satisfies(self, required: SmokeRequirement) -> bool:
        return (self.image, self.programs) == (required.image, required.programs) and (self.gpu or not required.gpu)


def programs_digest(lock: Lock, declared: Declarations) -> str:
    """Return the digest of all files that the checks write into a container, which are smoke programs and their inputs.

    If an image has several environments, the digest covers the files of all.
    """
    if lock.has_several:
        programs_by_environment = {
            environment.name: files_for(environment, declared.environments[environment.name])
            for environment in lock.environments
        }
        return digest_of_json({name: _digests(programs) for name, programs in programs_by_environment.items()})
    return digest_of_json(_digests(files(spec(lock, declared))))


def _digests(programs: Mapping[str, bytes]) -> dict[str, str]:
    return {name: digest_of(data) for name, data in programs.items()}


def passed_report(report: SmokeReport, required: SmokeRequirement, lock: Lock) -> PassedSmokeReport:
    """Return the report of a run in which no check failed, for the requirement that it satisfies."""
    checks = _gpu_checks(lock)
    ran = {result.check for result in report.results if result.status == "pass"}
    return PassedSmokeReport(required.image, required.programs, bool(checks) and checks <= ran, report.as_dict())


_SAVED = Cache("smoke", PassedSmokeReport)


def save_passed_report(store: Store, passed: PassedSmokeReport) -> None:
    _SAVED.put(store, report_key(passed.image, passed.programs, passed.gpu), passed)


def find_saved(store: Store, required: SmokeRequirement) -> PassedSmokeReport | None:
    """Return a report in the store that satisfies `required`, preferably of a run with a GPU."""
    for gpu in (True,) if required.gpu else (True, False):
        if passed := _SAVED.get(store, report_key(required.image, required.programs, gpu)):
            return passed
    return None


@dataclass(frozen=True)
class SmokeRun:
    """The run that gave a saved report, under given conditions."""

    time: int  # of its end, in seconds since 1970


_RUNS = Cache("smoke-run", SmokeRun)


def save_run(store: Store, passed: PassedSmokeReport, conditions: SmokeConditions, time: int) -> None:
    """Record the conditions of the run that gave a saved report."""
    _RUNS.put(store, run_key(passed, conditions), SmokeRun(time))


def find_run(
    store: Store, required: SmokeRequirement, conditions: SmokeConditions, lock: Lock
) -> tuple[PassedSmokeReport, int] | None:
    """Return a saved report that satisfies `required` and whose checks ran under these conditions, and their time.

    A report of a run without a GPU counts only if the host has no GPU.
    """
    for gpu in (True,) if required.gpu or (conditions.may_have_gpus and _gpu_checks(lock)) else (True, False):
        passed = _SAVED.get(store, report_key(required.image, required.programs, gpu))
        if passed and (run := _RUNS.get(store, run_key(passed, conditions))):
            return passed, run.time
    return None


def run_key(passed: PassedSmokeReport, conditions: SmokeConditions) -> str:
    """Return the key under which a store keeps the run that gave a report."""
    return digest_of_json([passed.image, passed.programs, passed.gpu, conditions.identity])


def _gpu_checks(lock: Lock) -> frozenset[str]:
    """Return the checks that must run on a GPU; checks for several GPUs are skipped on many hosts."""
    return frozenset(
        check_name(environment.name, check.name)
        for environment in lock.environments
        for check in (applicable(parts(environment.lock)) if environment.lock.gpu else ())
        if check.device == "cuda" and check.gpus == 1
    )


def report_key(image: str, suite_digest: str, gpu: bool) -> str:
    """Return the key under which a store keeps the report about an image."""
    return digest_of_json([image, suite_digest, gpu])
