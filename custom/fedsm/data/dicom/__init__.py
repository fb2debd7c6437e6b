"""DICOM in and out: series become volumes and pictures for the one reader there is, masks become DICOM-SEG.

Values of a header are checked before they are used, and no patient's identifier gets into a message or a file's name.
"""
