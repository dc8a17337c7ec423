"""`relight demo`: real workers, a real SIGKILL, and four facts that are computed, never assumed."""
