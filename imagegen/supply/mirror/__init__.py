"""Copy all files that locks name to a mirror: `registry.mirror` describes its form and its readers."""

from imagegen.supply.mirror.fill import Filled, MirrorArtifact, collect, fill, listings

__all__ = ["Filled", "MirrorArtifact", "collect", "fill", "listings"]
