"""The formats in which agents ask the policy: a module per wire, which reads requests and writes answers."""
