"""imagegen builds container images for LLM reinforcement-learning training, reproducibly."""

__version__ = "0.1.0"
