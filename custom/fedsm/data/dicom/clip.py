"""DICOM-SEG of a clip: frames in a row without a geometry, such as ultrasound.

highdicom numbers frames by their positions. A clip has none, so its frames get positions for as long as the object is
made; then these are taken out again, and the frames are numbered as a stack.
"""

from __future__ import annotations

from typing import Any


def lend_positions(hd: Any, header: Any) -> None:
    """Gives the header of a clip one plane per frame."""
    from pydicom.dataset import Dataset

    shared = Dataset()
    shared.PlaneOrientationSequence = hd.PlaneOrientationSequence("PATIENT", (1, 0, 0, 0, 1, 0))
    shared.PixelMeasuresSequence = hd.PixelMeasuresSequence((1, 1), 1, 1)
    frames = []
    for number in range(int(header.NumberOfFrames)):
        frame = Dataset()
        frame.PlanePositionSequence = hd.PlanePositionSequence(
            "PATIENT", (0, 0, -number)
        )  # in the order in which highdicom sorts
        frames.append(frame)
    header.FrameOfReferenceUID = hd.UID()
    header.SharedFunctionalGroupsSequence, header.PerFrameFunctionalGroupsSequence = [shared], frames


def take_positions(seg: Any) -> None:
    """Takes the lent positions out of the finished object."""
    from pydicom.tag import Tag

    for name in ("FrameOfReferenceUID", "PositionReferenceIndicator"):
        if name in seg:
            del seg[name]
    shared = seg.SharedFunctionalGroupsSequence[0]
    for name in ("PlaneOrientationSequence", "PixelMeasuresSequence"):
        if name in shared:
            del shared[name]
    for frame in seg.PerFrameFunctionalGroupsSequence:
        content = frame.FrameContentSequence[0]
        content.StackID, content.InStackPositionNumber = "1", content.DimensionIndexValues[1]
        del frame.PlanePositionSequence
    for pointer in seg.DimensionIndexSequence:
        if pointer.DimensionIndexPointer == Tag("ImagePositionPatient"):
            pointer.DimensionIndexPointer = Tag("InStackPositionNumber")
            pointer.FunctionalGroupPointer = Tag("FrameContentSequence")
            pointer.DimensionDescriptionLabel = "In-Stack Position Number"
