"""tttdd: a daemon that trains a language model on one problem while it searches for its best solution."""

__version__ = "0.1.0"
