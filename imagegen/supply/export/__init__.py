"""Export an image's files for hosts that have no container engine."""

from imagegen.supply.export.export import ExportPlan, plan, write

__all__ = ["ExportPlan", "plan", "write"]
