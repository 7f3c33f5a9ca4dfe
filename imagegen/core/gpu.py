"""A GPU architecture, as matrices define it and audits check for it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """A GPU architecture."""

    name: str  # "sm_120"
    capability: str  # compute capability: "12.0"
    family: str  # "blackwell"
    products: tuple[str, ...]  # "RTX 5090"
