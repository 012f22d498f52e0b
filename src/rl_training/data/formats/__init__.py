"""One module for each format: ``read`` returns the known arrays under the file's names, ``write`` writes a dataset."""
