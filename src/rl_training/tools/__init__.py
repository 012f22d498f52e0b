"""Tools around training: the data doctor, dataset repair, verification of runs, scripted controllers.

They stand above the core, which never imports them.
"""
