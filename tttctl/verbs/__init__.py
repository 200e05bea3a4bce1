"""The verbs, imported one at a time."""
