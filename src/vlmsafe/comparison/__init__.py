"""Comparisons of arms, as the audit, the report and the studies use them.

- `claims`: which arms are compared, about what, on which outcome and by which test. `comparisons` is the way in.
- `settings`: in which settings two runs differ, and which differences a comparison accounts for.
- `outcomes`: the number that each run contributes, and the verdict of the claimed test.
- `power`: what planned runs can show, and what the runs of an undecided comparison could have shown.
"""
