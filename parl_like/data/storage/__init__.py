"""Nested trees of arrays and plain values in files, and the only reader of files that others may have made.

`archive` a directory that loads back exactly or not at all · `tree_encoding` JSON and labelled arrays · `hdf5` one HDF5 file ·
`safe_files` opens plain files only, replaces in one step · `state_check` what a saved state must be like.
"""
