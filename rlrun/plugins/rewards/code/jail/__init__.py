"""Isolates one program. `launcher` runs as a process of its own and needs only the standard library."""
