"""One module for each file format: ``read`` gives its known arrays under its own names, ``write`` a whole dataset."""
