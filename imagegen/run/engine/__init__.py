"""A Docker engine: the user's or a private one; loading images, running containers, building Dockerfiles."""

from imagegen.run.engine.client import Engine
from imagegen.run.engine.containers import Container, Outcome, signal_name
from imagegen.run.engine.visits import ContainerInfo

__all__ = ["Container", "ContainerInfo", "Engine", "Outcome", "signal_name"]
