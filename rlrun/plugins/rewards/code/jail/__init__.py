"""Locks one program in; `launcher` is a process of its own, which needs only the standard library."""
