"""GPU architectures."""

from __future__ import annotations

from typing import Annotated

from imagegen.core.deferred import dataclass
from imagegen.core.matrix_entry import MatrixEntry
from imagegen.core.types import Alias, Capability, Name, Text
from imagegen.core.validation import doc


@dataclass(frozen=True)
class Gpu(MatrixEntry):
    """A GPU architecture, by the name that compilers give it: sm_90."""

    REQUIRED = ("source",)

    name: str  # "sm_120"
    capability: Annotated[Capability, doc("Compute capability.")]  # "12.0"
    family: Name  # "blackwell"
    products: Annotated[  # "RTX 5090"
        tuple[Alias, ...], doc("Names by which users call the cards.", default=())
    ]
    # "10.1", as CUDA 12.8 calls 11.0
    aliases: Annotated[tuple[Alias, ...], doc("Other names that users type.")] = ()
    amd64: Annotated[  # "B200"
        tuple[Alias, ...], doc("The products and aliases that only x86-64 hosts have.")
    ] = ()
    arm64: Annotated[  # "GH200"
        tuple[Alias, ...], doc("The products and aliases that only arm64 hosts have.")
    ] = ()
    source: Text = ""

    def platform_of(self, product: str) -> str:
        """Return the platform of a product's hosts. A card for a PCIe slot fits others too, but x86-64 is usual."""
        return "linux/arm64" if product in self.arm64 else "linux/amd64"
