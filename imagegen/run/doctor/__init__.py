"""Would an image run here, and what is wrong where one runs: the preflight's checks, asked from outside."""

from imagegen.run.doctor.container import examine_container
from imagegen.run.doctor.diagnosis import Diagnosis
from imagegen.run.doctor.fabric import Measured, examine_fabric
from imagegen.run.doctor.host import examine_host, facts_of

__all__ = ["Diagnosis", "Measured", "examine_container", "examine_fabric", "examine_host", "facts_of"]
