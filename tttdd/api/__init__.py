"""HTTP over the daemon's Unix socket."""
