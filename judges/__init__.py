"""Judges: run untrusted programs in a sandbox and grade what they return.  Knows nothing of the daemon."""
