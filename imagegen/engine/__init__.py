"""A Docker engine: the user's or a private one; loading images, running containers, building Dockerfiles."""

from imagegen.engine.client import Engine
from imagegen.engine.containers import Container, ContainerInfo, Outcome, signal_name

__all__ = ["Container", "ContainerInfo", "Engine", "Outcome", "signal_name"]
