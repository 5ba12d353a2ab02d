"""Agents that talk to an endpoint which records what they ask and are answered."""
