"""The verdict about an image, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class StepStatus(Enum):
    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    ABSENT = "absent"  # there is nothing to check, and nothing that would demand it
    UNCHECKED = "not checked"


@dataclass(frozen=True)
class StepResult:
    """The result for one artifact: `name` is the artifact, `evidence` the observation, in words."""

    name: str
    outcome: StepStatus
    evidence: str


@dataclass(frozen=True)
class ImageVerdict:
    """`digest` is of the image's manifest; None where not even that could be read."""

    reference: str
    digest: str | None
    steps: tuple[StepResult, ...]

    @property
    def good(self) -> bool:
        """True if no step failed."""
        return not self.wrong

    @property
    def wrong(self) -> tuple[StepResult, ...]:
        return tuple(step for step in self.steps if step.outcome is StepStatus.FAIL)

    @property
    def sentence(self) -> str:
        """The verdict in one line: the steps that failed, or those that were not checked."""
        if self.wrong:
            names = ", ".join(dict.fromkeys(step.name for step in self.wrong))
            return f"{self.reference} is not what it should be: {names}"
        left = [
            f"{step.name} not checked: {step.evidence}" for step in self.steps if step.outcome is StepStatus.UNCHECKED
        ]
        return "; ".join([f"{self.reference} is what its lock says", *left])


def passed(name: str, evidence: str) -> StepResult:
    return StepResult(name, StepStatus.PASS, evidence)


def failed(name: str, evidence: str) -> StepResult:
    return StepResult(name, StepStatus.FAIL, evidence)
