"""Everything that the trainer uses of torchtitan 0.3.0, and every private or patched symbol of it and of
torch.

There is one module per subject. A move to other versions starts here.
"""
