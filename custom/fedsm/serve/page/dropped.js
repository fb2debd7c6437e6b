// What was dropped or chosen, as images: a file each, but all DICOM files together are one series.

const DICOM_ENDINGS = /\.(dcm|dicom|ima)$/i;

/** All files of a drop, also those in folders. Must be called while the drop's event is handled. */
export async function filesOf(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some((entry) => entry.isDirectory)) return [...transfer.files];
  return (await Promise.all(entries.map(walk))).flat();
}

async function walk(entry) {
  if (entry.name.startsWith(".")) return [];
  if (entry.isFile) return [await new Promise((done, failed) => entry.file(done, failed))];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((done, failed) => reader.readEntries(done, failed)); // a hundred at a time
    if (!some.length) return (await Promise.all(found.map(walk))).flat();
    found.push(...some);
  }
}

/** Files as images: `{name, files, size}`. */
export async function imagesOf(files) {
  const dicom = await Promise.all(files.map(isDicom));
  const series = files.filter((_, i) => dicom[i]);
  const images = files.filter((_, i) => !dicom[i]).map((file) => ({ name: file.name, files: [file] }));
  if (series.length) {
    images.unshift({ name: series.length > 1 ? `${series.length} DICOM files` : series[0].name, files: series });
  }
  return images.map((image) => ({ ...image, size: image.files.reduce((sum, file) => sum + file.size, 0) }));
}

async function isDicom(file) {
  return DICOM_ENDINGS.test(file.name) || (await file.slice(128, 132).text()) === "DICM";
}
