"""`relight doctor`: what is wrong with this installation, and what to do about it.

Invariant: an examination changes nothing: it writes to no file that stays, takes no lock that others wait for longer than a
moment, and works on a directory that nothing else can open.
"""
