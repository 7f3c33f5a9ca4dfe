"""All that locks name, copied to a place of one's own: see `registry.mirror` for its form and for who reads it."""

from imagegen.supply.mirror.collect import Listing, collect, listings
from imagegen.supply.mirror.fill import Filled, fill

__all__ = ["Filled", "Listing", "collect", "fill", "listings"]
