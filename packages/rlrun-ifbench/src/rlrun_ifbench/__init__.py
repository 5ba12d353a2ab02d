"""Checks for the instructions of IFBench (arXiv 2507.02833) and IFEval (arXiv 2311.07911).

Each check is one function that takes the response and the instruction's arguments and returns whether the
response follows it. Its docstring says what a response must be like.
"""
