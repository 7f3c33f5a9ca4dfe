"""Copy all files that locks name to a mirror: `registry.mirror` describes its form and its readers."""

from imagegen.supply.mirror.collect import Listing, collect, listings
from imagegen.supply.mirror.fill import Filled, fill

__all__ = ["Filled", "Listing", "collect", "fill", "listings"]
