"""Checkable instructions of IFBench (arXiv 2507.02833) and IFEval (arXiv 2311.07911), one function each."""
