"""DICOM files for tests, written with pydicom: series, pictures, clips, masks, and broken ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

CT, MR, US = ("1.2.840.10008.5.1.4.1.1.2", "1.2.840.10008.5.1.4.1.1.4", "1.2.840.10008.5.1.4.1.1.6.1")
US_CLIP, ENHANCED_MR = "1.2.840.10008.5.1.4.1.1.3.1", "1.2.840.10008.5.1.4.1.1.4.1"
SECRET = "MUSTERMANN"  # in every identifier: must appear nowhere
AXIAL = ((1, 0, 0), (0, 1, 0))
SAGITTAL = ((0, 1, 0), (0, 0, -1))
FLIPPED = ((-1, 0, 0), (0, -1, 0))


def oblique(degrees: float = 20) -> tuple:
    """Axial slices, tilted about two axes."""
    a, b = np.radians([degrees, degrees / 2])
    x = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    z = np.array([[np.cos(b), -np.sin(b), 0], [np.sin(b), np.cos(b), 0], [0, 0, 1]])
    return tuple((x @ z)[:, 0]), tuple((x @ z)[:, 1])


def dataset(pixels: np.ndarray, sop_class: str = CT, patient: str = "1", **tags) -> FileDataset:
    """One file of (H, W), (H, W, 3), (frames, H, W) or (frames, H, W, 3) pixels; `tags` are set last."""
    colour = pixels.shape[-1] == 3
    d = FileDataset("", {}, preamble=b"\0" * 128, file_meta=FileMetaDataset())
    d.SOPClassUID, d.SOPInstanceUID = sop_class, generate_uid()
    d.PatientName, d.PatientID = f"{SECRET}^{patient}", f"{SECRET}-{patient}"
    d.StudyInstanceUID, d.SeriesInstanceUID = generate_uid(), generate_uid()
    d.Modality = {CT: "CT", MR: "MR", ENHANCED_MR: "MR"}.get(sop_class, "US")
    d.SeriesNumber, d.InstanceNumber = 3, 1
    d.Rows, d.Columns = pixels.shape[-3:-1] if colour else pixels.shape[-2:]
    if pixels.ndim == 3 + colour:
        d.NumberOfFrames = len(pixels)
    d.SamplesPerPixel, d.PhotometricInterpretation = (3, "RGB") if colour else (1, "MONOCHROME2")
    if colour:
        d.PlanarConfiguration = 0
    d.BitsAllocated = d.BitsStored = 8 * pixels.itemsize
    d.HighBit, d.PixelRepresentation = d.BitsStored - 1, int(pixels.dtype.kind == "i")
    d.PixelData = pixels.tobytes() + b"\0" * (pixels.nbytes % 2)
    d.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    for name, value in tags.items():
        setattr(d, name, value)
    d.file_meta.MediaStorageSOPClassUID, d.file_meta.MediaStorageSOPInstanceUID = d.SOPClassUID, d.SOPInstanceUID
    return d


def save(d: Dataset, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    d.save_as(path, enforce_file_format=True)
    return path


def series(
    volume: np.ndarray, axes: tuple = AXIAL, spacing: tuple = (0.7, 0.9), step: float = 2.5, sop_class: str = CT,
    patient: str = "1", origin: tuple = (-20.0, -30.0, 40.0), **tags,
) -> list[FileDataset]:  # fmt: skip
    """A series of a volume (slices, H, W), in the order of its slices; rows and columns along `axes`."""
    common = {"StudyInstanceUID": generate_uid(), "SeriesInstanceUID": generate_uid()}
    common |= {"FrameOfReferenceUID": generate_uid(), "SliceThickness": step, "PixelSpacing": list(spacing)}
    common["ImageOrientationPatient"] = [*map(float, axes[0]), *map(float, axes[1])]
    normal = np.cross(*axes)
    return [
        dataset(
            pixels,
            sop_class,
            patient,
            InstanceNumber=number + 1,
            ImagePositionPatient=(np.array(origin) + number * step * normal).tolist(),
            **(common | tags),
        )  # fmt: skip
        for number, pixels in enumerate(volume)
    ]


def write_series(folder: Path, volume: np.ndarray, seed: int = 0, ending: str = "", **options) -> list[FileDataset]:
    """A series as files whose names say nothing about their order."""
    slices = series(volume, **options)
    for place, one in zip(np.random.default_rng(seed).permutation(len(slices)), slices, strict=True):
        save(one, folder / f"IM{place:04d}{ending}")
    return slices


def random_volume(seed: int = 0, shape: tuple = (6, 24, 20), dtype: type = np.int16) -> np.ndarray:
    """A volume that looks different from every side."""
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*(np.linspace(0, 1, n) for n in shape), indexing="ij"))
    smooth = 300 * grid[0] + 700 * grid[1] + 500 * (grid[2] - 0.3) ** 2
    return (smooth + rng.integers(0, 60, shape)).astype(dtype)


def enhanced(volume: np.ndarray, patient: str = "1", step: float = 2.0) -> FileDataset:
    """One multi-frame MR file of a volume, its frames in reverse order."""
    d = dataset(volume[::-1].copy(), ENHANCED_MR, patient, FrameOfReferenceUID=generate_uid())
    shared, frames = Dataset(), []
    shared.PlaneOrientationSequence = [Dataset()]
    shared.PlaneOrientationSequence[0].ImageOrientationPatient = [1.0, 0, 0, 0, 1, 0]
    shared.PixelMeasuresSequence = [Dataset()]
    shared.PixelMeasuresSequence[0].PixelSpacing = [1.0, 1.0]
    shared.PixelMeasuresSequence[0].SliceThickness = step
    for number in reversed(range(len(volume))):
        frame = Dataset()
        frame.PlanePositionSequence = [Dataset()]
        frame.PlanePositionSequence[0].ImagePositionPatient = [0.0, 0.0, step * number]
        frame.PixelValueTransformationSequence = [Dataset()]
        frame.PixelValueTransformationSequence[0].RescaleSlope = 2
        frame.PixelValueTransformationSequence[0].RescaleIntercept = 1
        frames.append(frame)
    d.SharedFunctionalGroupsSequence, d.PerFrameFunctionalGroupsSequence = [shared], frames
    return d


def truncate(path: Path, keep: float = 0.6) -> Path:
    """Cuts a file's end off."""
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    return path


def plain_text(folder: Path) -> str:
    """The names and content of all files below a folder, to look for identifiers in."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return "\n".join(str(path.relative_to(folder)) + path.read_bytes().decode("latin-1") for path in files)


def read_dicom(path: Path) -> FileDataset:
    return pydicom.dcmread(path)


def segmentation(
    sources: list[FileDataset], labels: dict[str, np.ndarray], omit_empty: bool = True, **tags
) -> FileDataset:
    """A DICOM-SEG of another program: label -> mask (frames, H, W) on the frames of `sources`."""
    import highdicom as hd

    described = [
        hd.seg.SegmentDescription(
            number + 1, name, hd.sr.CodedConcept("91723000", "SCT", "Anatomical Structure"),
            hd.sr.CodedConcept("41216001", "SCT", "Prostate"), "MANUAL",
        )
        for number, name in enumerate(labels)
    ]  # fmt: skip
    for source in sources:
        for name in (
            "PatientBirthDate", "PatientSex", "AccessionNumber", "StudyID", "StudyDate", "StudyTime",
        ):  # fmt: skip
            setattr(source, name, source.get(name))
    seg = hd.seg.Segmentation(
        sources, np.stack(list(labels.values()), axis=-1).astype(np.uint8), "BINARY", described, hd.UID(), 77, hd.UID(),
        1, "Other", "Other", "1", "1", omit_empty_frames=omit_empty,
    )  # fmt: skip
    for name, value in tags.items():
        setattr(seg, name, value)
    return seg


def contours(sources: list[FileDataset], name: str, polygons: dict[int, list]) -> FileDataset:
    """An RTSTRUCT with one region: slice -> its polygons, each (points, 2) of column and row."""
    first = sources[0]
    d = dataset(
        np.zeros((1, 1), np.uint8), "1.2.840.10008.5.1.4.1.1.481.3", FrameOfReferenceUID=first.FrameOfReferenceUID
    )
    for tag in ("Rows", "Columns", "PixelData", "BitsAllocated", "BitsStored", "HighBit"):
        delattr(d, tag)
    d.PatientID, d.PatientName, d.StudyInstanceUID = first.PatientID, first.PatientName, first.StudyInstanceUID
    d.Modality = "RTSTRUCT"
    roi, region, reference, study, listed = (Dataset() for _ in range(5))
    roi.ROINumber, roi.ROIName = 4, name
    listed.SeriesInstanceUID = first.SeriesInstanceUID
    study.RTReferencedSeriesSequence, reference.RTReferencedStudySequence = [listed], [study]
    region.ReferencedROINumber, region.ContourSequence = 4, []
    axes = np.array(first.ImageOrientationPatient, float).reshape(2, 3)
    rows, columns = first.PixelSpacing
    for number, drawn in polygons.items():
        origin = np.array(sources[number].ImagePositionPatient, float)
        for polygon in drawn:
            points = np.array(polygon, float)
            contour = Dataset()
            contour.ContourGeometricType, contour.NumberOfContourPoints = "CLOSED_PLANAR", len(points)
            placed = origin + points[:, :1] * columns * axes[0] + points[:, 1:] * rows * axes[1]
            contour.ContourData = [f"{value:.6f}" for value in placed.ravel()]
            region.ContourSequence.append(contour)
    d.StructureSetROISequence, d.ROIContourSequence, d.ReferencedFrameOfReferenceSequence = [roi], [region], [reference]
    return d
