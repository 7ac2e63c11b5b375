"""The checks of the audit, one module per thing that they look at.

`design` looks at settings and seeds; `code` at what computed the results; `runs` at single run directories;
`evaluations` at what was evaluated;
`metrics` at what return and cost measure; `verdicts` at what a test's verdict depends on; `signal` at what the signal
did. A check yields findings of one kind, and the check of the kind `too-few-seeds` is called `too_few_seeds`. Each
module ends with tuples of its checks, which `audit/auditor.py` calls.
"""
