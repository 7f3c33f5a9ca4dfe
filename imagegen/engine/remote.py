"""Let an engine fetch an image from a registry itself: for images whose layers are not in this machine's store.

Source: Docker Engine API v1.44 (/images/create, X-Registry-Auth).
"""

from __future__ import annotations

from collections import deque
from functools import partial

import docker

from imagegen.core.errors import EngineError
from imagegen.core.progress import Progress, timed
from imagegen.engine.connection import while_alive
from imagegen.engine.containers import explained
from imagegen.engine.load import follow, forget, image_digest, tag_image


def pull(
    client: docker.DockerClient,
    name: str,
    digest: str,
    tag: str,
    credentials: tuple[str, str] | None,
    progress: Progress,
) -> None:
    """See `Engine.pull`."""
    if image_digest(client, digest) is None:
        # Without any, the SDK would read the configuration of the user.
        auth = {"username": credentials[0], "password": credentials[1]} if credentials else {}
        events = partial(client.api.pull, name, digest, stream=True, decode=True, auth_config=auth)
        with timed(progress, f"the engine pulls {name}@{digest}"), explained(f"pulling {name}@{digest}"):
            # The engine's own progress is not shown, because it counts each layer twice.
            deque(follow(while_alive(client, events), f"{name}@{digest}"), maxlen=0)
        after = image_digest(client, f"{name}@{digest}")
        if after != digest:
            raise EngineError(
                f"the engine holds another image as {name}@{digest}", code="engine-tag-mismatch", why=f"it is {after}"
            )
        tag_image(client, digest, tag)
        forget(client, f"{name}@{digest}")
    else:
        tag_image(client, digest, tag)
