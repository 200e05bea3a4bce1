"""One module per port: how the daemon reaches engines, trainers, judges and disks."""
