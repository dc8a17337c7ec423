"""The command line: `relight [--home DIR] [-A APP] [--json] VERB`.

Invariant: a verb parses, calls one function and prints; what it needs is imported when it runs, so that a verb that
only reads loads neither Huey nor pydantic. Under --json stdout carries JSON documents and nothing else.
"""

from .door import main

__all__ = ["main"]
