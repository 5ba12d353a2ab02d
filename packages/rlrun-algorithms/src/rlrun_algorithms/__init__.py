"""Algorithms for rlrun that only one other trainer has."""
