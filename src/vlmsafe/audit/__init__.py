"""Does a comparison show what it says? An audit of runs, their settings, their evaluations and their signal.

`audit` reads run directories and returns findings; `findings` lists every one there is.
"""

from vlmsafe.audit.auditor import audit

__all__ = ["audit"]
