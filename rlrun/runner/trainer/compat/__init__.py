"""Everything that the trainer takes from torchtitan 0.3.0, and every private or patched symbol of it and of
torch: a module for each subject, for whoever moves to other versions.
"""
