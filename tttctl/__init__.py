"""The command line: a client of the daemon's socket.

It starts with argparse and msgspec alone; what a verb needs beyond them is imported by that verb.
"""
