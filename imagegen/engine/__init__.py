"""Use the user's Docker engine or a private one: load images, run containers, build Dockerfiles."""

from imagegen.engine.client import Engine
from imagegen.engine.containers import Container, Outcome, signal_name
from imagegen.engine.inspection import ContainerInfo
