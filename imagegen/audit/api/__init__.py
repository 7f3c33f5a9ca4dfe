"""Compare the names that a Python package requires of another package with the names that the other package defines.

Sources are parsed and never run. Source of the rules: The Python Language Reference, "The import system" and "The
import statement"; PEP 562 for a module's `__getattr__`.
"""

from imagegen.audit.api.exports import Module, exports
from imagegen.audit.api.lookup import Api
from imagegen.audit.api.required import RequiredName

__all__ = ["Api", "Module", "RequiredName", "exports"]
