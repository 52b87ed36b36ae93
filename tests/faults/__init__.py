"""The faults of the reliability rules against real daemons, one test named after each number."""
