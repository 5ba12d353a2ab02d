"""rlrun: reinforcement-learning post-training of language models from one TOML file."""
