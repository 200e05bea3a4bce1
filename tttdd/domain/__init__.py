"""The algorithm's pure parts: no files, no sockets, no clock."""
