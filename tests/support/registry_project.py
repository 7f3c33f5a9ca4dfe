"""A project whose base is an image in a registry."""

from __future__ import annotations

import json
from pathlib import Path

import requests

from tests.support.docker_registry import PASSWORD, USER, Hub
from tests.support.project import Project

MATRIX = """\
bases:
  pulled:
    description: A registry's.
    kind: registry
    image: {host}/people/base:1
    system: debian12
components:
  demo: {{description: A wheel of a few bytes., imports: [demo]}}
images:
  demo: {{description: Small., purpose: Tests., base: pulled, components: {{demo: {{because: Tests.}}}}}}
"""


def project(root: Path, hub: Hub) -> Project:
    """It logs in as `docker login` does."""
    made = Project(root)
    made.env |= {"PIP_INDEX_URL": (root / "index").as_uri(), "DOCKER_CONFIG": str(root / "home")}
    auth = requests.auth._basic_auth_str(USER, PASSWORD).removeprefix("Basic ")
    (root / "home" / "config.json").write_text(json.dumps({"auths": {hub.host: {"auth": auth}}}))
    (root / "matrices" / "demo.yaml").write_text(MATRIX.format(host=hub.host))
    return made
