"""Does a comparison show what it says? An audit of runs, their settings, their evaluations and their signal.

`audit` reads run directories and returns findings. It changes nothing.

To add a finding:

1. Describe its kind in `kinds.py`: code, severity, title, meaning and remedy. The documentation is made from it.
2. Write the check in the module of `checks/` that looks at the same thing, named after the code: the check of
   `too-few-seeds` is `checks/design.py: too_few_seeds`. It takes a run, an arm or a comparison and yields findings of
   this kind only. Add it to the tuple at the end of the module that has checks of the same arguments. A check that
   looks at all comparisons or at an environment takes other arguments: call it in `auditor.py`.
3. Plant the defect in `tests/audit/designs`: the tests then ask for this finding, and for no other.

`findings.py` says what a finding carries. `comparison/` says what is compared with what.
"""

from vlmsafe.audit.auditor import audit

__all__ = ["audit"]
