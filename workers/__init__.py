"""What runs: the queue's consumers, threads, signals, the clock, the environment and the command line.

This room alone reads the clock and the environment, and hands both down as arguments.
"""
