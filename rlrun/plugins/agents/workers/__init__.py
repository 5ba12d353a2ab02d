"""Executions that workers elsewhere carry out."""
