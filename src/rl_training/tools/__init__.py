"""Tools around training: the data doctor, dataset repair, verification of runs, scripted controllers.

They use the core, which never imports them.
"""
