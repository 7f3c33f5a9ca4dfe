"""imagegen builds container images for LLM reinforcement-learning training, reproducibly."""

__version__ = "0.1.0"
REPOSITORY = "https://github.com/imagegen/imagegen"  # predicate and build types are addresses below it
