"""Scans of wheels made up for tests."""

from __future__ import annotations

from packaging.version import Version

from imagegen.compat.wheel_scans import PackageScans, ScannedLibrary, WheelScan, WheelVerdict

DAY = "2026-11-24"


def scan(version: str, verdict: WheelVerdict, *libraries: ScannedLibrary, name: str = "pack") -> WheelScan:
    """The scan of a release of `name`; the sha256 is the same for all."""
    filename = f"{name.replace('-', '_')}-{version}-cp38-abi3-manylinux_2_28_x86_64.whl"
    return WheelScan(version, filename, "ab" * 32, 1000, DAY, libraries, verdict)


def scans(*releases: WheelScan, name: str = "pack") -> PackageScans:
    ordered = sorted(releases, key=lambda each: Version(each.version))
    return PackageScans(name, "pypi", "2024-07-01", {each.version: each for each in ordered})
