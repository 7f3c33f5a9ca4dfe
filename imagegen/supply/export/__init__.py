"""Export an image's files for hosts that have no container engine."""

from imagegen.supply.export.export import Plan, plan, write

__all__ = ["Plan", "plan", "write"]
