"""A Docker engine: the user's or a private one; loading images, running containers, building Dockerfiles."""

from imagegen.engine.client import Engine
from imagegen.engine.containers import Container, Outcome

__all__ = ["Container", "Engine", "Outcome"]
