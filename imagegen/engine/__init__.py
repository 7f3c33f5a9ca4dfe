"""A Docker engine: the user's or a private one; loading images, running containers, building Dockerfiles."""

from imagegen.engine.client import Engine
from imagegen.engine.containers import Container, Outcome, signal_name
from imagegen.engine.inspection import ContainerInfo

__all__ = ["Container", "ContainerInfo", "Engine", "Outcome", "signal_name"]
