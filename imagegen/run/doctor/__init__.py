"""Would an image run here, and what is wrong where one runs: the preflight's checks, asked from outside."""

from imagegen.run.doctor.diagnosis import Diagnosis, examine_container, examine_host, examine_log, facts_of
from imagegen.run.doctor.fabric import Measured, examine_fabric

__all__ = ["Diagnosis", "Measured", "examine_container", "examine_fabric", "examine_host", "examine_log", "facts_of"]
