"""Datasets in the layouts that researchers have: nnU-Net and BIDS derivatives in, nnU-Net out.

A dataset is read into `cases.Case`s, which are checked as a whole before the first file is written.
"""
