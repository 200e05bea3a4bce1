"""`tttctl monitor`: what the daemon does now, on one screen.

    feed (threads; tttctl.client) -> Seen -> pure views: lines of (text, role) -> Panel -> the terminal

Everything but app, panel and dialogs is free of Textual: a view is a function of what was seen and of its own size.
"""
