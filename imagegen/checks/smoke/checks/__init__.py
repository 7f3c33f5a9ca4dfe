"""One `check(spec) -> details` per module; see smoke.table for what each proves."""
