"""A report of every kind of finding, and a catalogue of its own: golden files do not move with the real one's words."""

from __future__ import annotations

from imagegen.audit.finding_texts import FindingText
from imagegen.audit.model import Finding, Severity
from imagegen.audit.report import AuditReport, PackageVerdict, ordered
from imagegen.audit.torch_users import Fit

ENTRIES = {
    "missing-symbol": FindingText(
        severity=Severity.ERROR,
        title="A symbol that nothing defines",
        meaning="The loader will refuse the file.",
        fix="Take the build of the package that was made for the torch beside it.",
        source="ld.so(8)",
    ),
    "slow-start": FindingText(
        severity=Severity.WARNING,
        title="Code that the driver compiles first",
        meaning="The first start takes minutes.",
        fix="Set CUDA_CACHE_PATH to a directory that stays, and CUDA_CACHE_MAXSIZE to 4 GB.",
        source="CUDA C++ Programming Guide, environment variables, 2026-11-21",
    ),
    "dead": FindingText(
        severity=Severity.INFO,
        title="Code for other GPUs",
        meaning="It is never run.",
        fix="Nothing needs to be done.",
        source="measured, 2026-11-21",
    ),
}

SYMBOLS = (
    "c10::cuda::SetDevice(signed char, bool) [_ZN3c104cuda9SetDeviceEab]",
    f"c10::detail::torchCheckFail({', '.join(['char const*'] * 3)}, unsigned int, std::string const&) [_ZN3c10]",
    *(f"at::_ops::op{number}::call(at::Tensor const&)" for number in range(6)),
)

FINDINGS = (
    Finding(Severity.INFO, "dead", "torch 2.8.0", None, "312 MB of 913 MB run on none of its GPUs", ("sm_75: 104 MB",)),
    Finding(
        Severity.WARNING,
        "slow-start",
        "alpha 1.0",
        "alpha/_fa2_C.abi3.so",
        "runs on sm_100, sm_103 and sm_120 only after the driver has compiled it: driver 570.26 (CUDA 12.8)",
    ),
    Finding(
        Severity.ERROR,
        "missing-symbol",
        "vllm 0.11.0",
        "vllm/_C.abi3.so",
        "8 symbols are defined by nothing that it can see",
        SYMBOLS,
    ),
    Finding(Severity.WARNING, "slow-start", "vllm 0.11.0", None, "all of it"),
    Finding(Severity.INFO, "dead", "", None, "500 MB in all run on none of its GPUs"),
    Finding(Severity.INFO, "dead", "", None, "500 MB in all run on none of its GPUs"),
    Finding(Severity.ERROR, "missing-symbol", "", "/lib/x86_64-linux-gnu/libodd.so.1", "one of the base's own"),
)

REPORT = AuditReport(
    subject="hopper-vllm-cu130-py311",
    findings=ordered(FINDINGS),
    verdicts=(
        PackageVerdict("torch 2.8.0", {"sm_90": "sass", "sm_120": "sass", "sm_121": "sass"}),
        PackageVerdict("vllm 0.11.0", {"sm_90": "sass", "sm_120": "ptx", "sm_121": "no"}, Fit(False, ("2.8",), "2.8")),
    ),
    gpus={"sm_90": True, "sm_120": True, "sm_121": False},
    packages=3,
    elf_files=41,
)
