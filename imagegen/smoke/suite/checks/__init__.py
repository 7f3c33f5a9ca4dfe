"""One program per module; see suite.table for what each proves."""
