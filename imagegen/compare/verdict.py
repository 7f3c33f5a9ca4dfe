"""The verdict on an image, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum


class StepStatus(Enum):
    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    ABSENT = "absent"  # the artifact does not exist, and nothing requires it
    UNCHECKED = "not checked"
    NOT_DONE = "not done"  # required, but not permitted


@dataclass(frozen=True)
class StepResult:
    """The result of the check of the artifact `name`; `evidence` describes the observation."""

    name: str
    outcome: StepStatus
    evidence: str


@dataclass(frozen=True)
class ImageVerdict:
    """The results for an image or index. `digest` is None if the manifest could not be read.

    For an index, `platforms` has the verdict on the image of each platform.
    """

    reference: str
    digest: str | None
    steps: tuple[StepResult, ...]
    platforms: Mapping[str, ImageVerdict] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """True if no step failed and all required steps were done."""
        return not self.wrong and not self._steps(StepStatus.NOT_DONE)

    @property
    def wrong(self) -> tuple[StepResult, ...]:
        return self._steps(StepStatus.FAIL)

    @property
    def wrong_names(self) -> str:
        return ", ".join(dict.fromkeys(step.name for step in self.wrong))

    def _steps(self, outcome: StepStatus) -> tuple[StepResult, ...]:
        return tuple(step for step in self._all_steps if step.outcome is outcome)

    @property
    def _all_steps(self) -> tuple[StepResult, ...]:
        """The steps of the index and of its images; the platform is part of the name."""
        images = self.platforms.items()
        nested = [
            replace(step, name=f"{platform} {step.name}") for platform, verdict in images for step in verdict.steps
        ]
        return (*self.steps, *nested)

    @property
    def sentence(self) -> str:
        """The verdict in one line, with the steps that failed, or that were not done or not checked."""
        if self.wrong:
            return f"{self.reference} does not match its lock: {self.wrong_names}"
        undone = [
            f"{step.name} {step.outcome.value}: {step.evidence}"
            for step in (*self._steps(StepStatus.NOT_DONE), *self._steps(StepStatus.UNCHECKED))
        ]
        success = "each image of {} matches its lock" if self.platforms else "{} matches its lock"
        return "; ".join([success.format(self.reference), *undone])


def passed(name: str, evidence: str) -> StepResult:
    return StepResult(name, StepStatus.PASS, evidence)


def failed(name: str, evidence: str) -> StepResult:
    return StepResult(name, StepStatus.FAIL, evidence)
