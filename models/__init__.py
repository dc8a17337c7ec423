"""What is stored: the tables, their words and every SQL statement.

Nothing in this room imports another room, reads a clock or starts anything: what it needs to know comes as arguments.
"""
