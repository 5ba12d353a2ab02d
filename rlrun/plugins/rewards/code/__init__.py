"""Running programs that a policy wrote, in a sandbox, against tests."""
