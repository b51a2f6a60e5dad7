"""`make mutants`: which changes to the modules that decide and destroy does no test notice?

`rules` says which changes there are, `variants` makes them, `changed_lines` finds the lines of a change, `judging` runs
the tests that cover each, and `verdicts` keeps what is known. What it is for: docs/design/mutants.md.
"""
