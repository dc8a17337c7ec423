"""Agents that need no model: load one with `relight -A examples/explorer.py …`."""
