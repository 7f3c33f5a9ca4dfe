"""Where the wheels of a component that needs a compiler are looked for on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from imagegen.config import Settings
from imagegen.lock import indexes
from imagegen.lock.indexes import Link
from imagegen.net import Client
from imagegen.progress import Progress
from imagegen.store import Store
from imagegen.wheels import wheelhouse
from imagegen.wheels.catalogue import Catalogue
from imagegen.wheels.find import Listing, Offer, Places


def places(
    catalogue: Catalogue, index: Listing | None, settings: Settings, store: Store, client: Client, progress: Progress
) -> Places:
    """All places in their order; `index` is what the component's own index has of it."""
    # Whoever looks for a wheel wants to hear soon that a host is gone: it is one place of many.
    quick = client.impatient()
    return Places(
        store=store,
        client=client,
        progress=progress,
        wheelhouse=partial(wheelhouse.known, store),
        links=tuple(
            Listing(place, _offered(partial(indexes.find_links, quick, place))) for place in settings.find_links
        ),
        index=index,
        catalogue=catalogue.offers,
    )


def index(alias: str, package: str, settings: Settings, client: Client) -> Listing | None:
    """What the alias's index has of a package today, whatever a lock's as-of time; None where it has no address."""
    url = indexes.url_of(alias, settings)
    return Listing(alias, _offered(partial(indexes.project, client.impatient(), url, package))) if url else None


def _offered(read: Callable[[], Iterable[Link]]) -> Callable[[], list[Offer]]:
    return lambda: [Offer(link.filename, link.url, link.sha256) for link in read() if not link.yanked]
