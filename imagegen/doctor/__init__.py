"""Would an image run here, and what is wrong where one runs: the preflight's checks, asked from outside."""

from imagegen.doctor.container import examine_container
from imagegen.doctor.diagnosis import Diagnosis
from imagegen.doctor.host import examine_host, facts_of

__all__ = ["Diagnosis", "examine_container", "examine_host", "facts_of"]
