"""Figures of runs and of what their best programs return, drawn with matplotlib and no state of its pyplot.

    Structs of the protocol -> a function of one module here, a figure family each -> style.render -> PNG or SVG bytes

The same input gives the same bytes.  Nothing here asks the daemon: the verbs do.
"""
