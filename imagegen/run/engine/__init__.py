"""A Docker engine: the user's or a private one; loading images, running containers, building Dockerfiles."""

from imagegen.run.engine.client import Engine
from imagegen.run.engine.containers import Container, Outcome, signal_name
from imagegen.run.engine.visits import Visit

__all__ = ["Container", "Engine", "Outcome", "Visit", "signal_name"]
