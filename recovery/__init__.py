"""What to conclude from what is stored: sweeps, decisions, replay, policy.

No clock, thread, network or queue is reached from here: `now` and proofs of death come in as arguments.
"""
