"""One `check(spec) -> details` per module; see suite.table for what each proves."""
