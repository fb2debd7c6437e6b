// One result beside its explanation: the picture with its overlay, the network that was taken and why, the measures.

import { fetchFile, forget, predict } from "./server.js";

const FILES = { nifti: "mask.nii.gz", dicom: "mask.dcm" };
const ENDINGS = { png: ".png", nifti: ".nii.gz", dicom: ".dcm" };
const AHEAD = 3; // slices that are fetched before they are asked for
const MOST = 40; // slices whose pictures are kept

export class Panel {
  /**
   * @param {HTMLElement} parent where it goes
   * @param {object} info the answer of /api/model
   * @param {object} hooks `step(n)` changes the slice of all panels, `ready(panel)` is called with a new result
   */
  constructor(parent, info, hooks) {
    this.root = document.getElementById("panel").content.firstElementChild.cloneNode(true);
    parent.append(this.root);
    this.info = info;
    this.hooks = hooks;
    this.select = this.find("select");
    this.select.append(...info.choices.map((name) => new Option(networkName(name), name)));
    this.select.addEventListener("change", () => this.load(this.image));
    this.stage = this.find(".stage");
    this.stage.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    this.stage.addEventListener("keydown", (event) => this.onKey(event));
    for (const button of this.root.querySelectorAll("[data-file]")) {
      button.addEventListener("click", () => this.download(button.dataset.file));
    }
    this.answer = null;
    this.slice = 1;
    this.wheel = 0;
    this.pictures = new Map(); // "image/3.png" -> promise of an object URL
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  get slices() {
    return this.answer ? this.answer.slices.length : 1;
  }

  /** Segments an image, `{name, files}`, with the chosen network. */
  async load(image) {
    this.drop();
    this.image = image;
    const abort = (this.abort = new AbortController());
    this.find(".wait").hidden = false;
    this.root.setAttribute("aria-busy", "true");
    try {
      const answer = await predict(image.files, this.select.value, abort.signal);
      if (abort.signal.aborted) return forget(answer.id);
      this.answer = answer;
      this.hooks.ready(this);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.say(error.message);
      this.hooks.failed(this, error);
    } finally {
      if (this.abort === abort) {
        this.find(".wait").hidden = true;
        this.root.removeAttribute("aria-busy");
      }
    }
  }

  /** Forgets what is shown, here and in the service. */
  drop() {
    this.abort?.abort();
    if (this.answer) forget(this.answer.id);
    this.answer = null;
    for (const picture of this.stage.querySelectorAll("img")) picture.removeAttribute("src");
    for (const url of this.pictures.values()) url.then(URL.revokeObjectURL, () => {});
    this.pictures.clear();
    delete this.root.dataset.shown;
    this.root.classList.remove("has-result");
    this.say("");
  }

  remove() {
    this.drop();
    this.root.remove();
  }

  say(problem) {
    this.find(".problem").textContent = problem;
    this.find(".problem").hidden = !problem;
  }

  onWheel(event) {
    if (this.slices < 2 || event.ctrlKey) return;
    event.preventDefault();
    this.wheel += event.deltaMode === 0 ? event.deltaY : event.deltaY * 40;
    const steps = Math.trunc(this.wheel / 40);
    this.wheel -= steps * 40;
    if (steps) this.hooks.step(-Math.max(-3, Math.min(3, steps)));
  }

  onKey(event) {
    const steps = { ArrowUp: 1, ArrowDown: -1, PageUp: 10, PageDown: -10, Home: -1e9, End: 1e9 }[event.key];
    if (steps === undefined || this.slices < 2 || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.hooks.step(steps);
  }

  /** Shows a slice, counted from 1. */
  async show(slice, opacity) {
    if (!this.answer) return;
    this.slice = Math.min(slice, this.slices);
    this.setOpacity(opacity);
    this.describe();
    const { answer, slice: wanted } = this;
    const isOld = () => wanted !== this.slice || answer !== this.answer;
    try {
      const urls = await Promise.all(["image", "overlay"].map((kind) => this.picture(kind, wanted)));
      if (isOld()) return;
      this.find(".image").src = urls[0];
      this.find(".overlay").src = urls[1];
      await Promise.all([this.find(".image").decode(), this.find(".overlay").decode()]).catch(() => {});
      if (isOld()) return;
      this.root.dataset.shown = wanted;
      for (let i = 1; i <= AHEAD; i++) {
        for (const near of [wanted + i, wanted - i]) {
          if (near >= 1 && near <= this.slices) ["image", "overlay"].forEach((kind) => this.picture(kind, near));
        }
      }
    } catch (error) {
      if (!isOld()) this.say(error.message);
    }
  }

  picture(kind, slice) {
    const name = `${kind}/${slice}.png`;
    const known = this.pictures.get(name);
    if (known) this.pictures.delete(name);
    // Of a result that is dropped nothing more is wanted: the service would answer that it is gone.
    const { signal } = this.abort;
    const url = known ?? fetchFile(this.answer.id, name, signal).then((blob) => URL.createObjectURL(blob));
    url.catch(() => this.pictures.delete(name));
    this.pictures.set(name, url); // the last one is the most recent
    if (this.pictures.size > 2 * MOST) {
      const [oldest, old] = this.pictures.entries().next().value;
      this.pictures.delete(oldest);
      old.then(URL.revokeObjectURL, () => {});
    }
    return url;
  }

  setOpacity(opacity) {
    this.find(".overlay").style.opacity = opacity / 100;
  }

  describe() {
    const { answer, info } = this;
    const slice = answer.slices[this.slice - 1];
    this.root.classList.add("has-result");
    this.find(".network").textContent = heading(slice.model);
    this.find(".why").textContent = slice.why;
    this.root.classList.toggle("is-foreign", Boolean(slice.foreign));
    this.find(".foreign").hidden = !slice.foreign;
    this.find(".summary").hidden = answer.kind !== "volume";
    this.find(".summary").textContent = answer.summary;
    this.describeSites(slice);
    const rows = Object.keys(info.labels).map((label) => measureRow(label, slice.measures));
    const ratio = slice.measures.vertical_cup_to_disc;
    if (ratio !== undefined) rows.push(["vertical cup-to-disc ratio", ratio === null ? "no disc" : ratio.toFixed(2)]);
    if (slice.distance !== null) rows.push(["distance (1 is usual)", slice.distance.toFixed(2)]);
    this.find(".measured tbody").replaceChildren(...rows.map(([name, value]) => tableRow(name, value)));
    const told = answer.kind === "volume" ? `Slice ${this.slice} of ${this.slices}, ` : "Image, ";
    this.stage.setAttribute("aria-label", `${told}segmented by ${shareName(slice.model)}`);
    this.find("[data-file=dicom]").hidden = !answer.files.includes(FILES.dicom);
    this.find("[data-file=png]").textContent = answer.kind === "volume" ? "This slice's mask as PNG" : "Mask as PNG";
  }

  describeSites(slice) {
    this.find(".yhat").hidden = !slice.yhat;
    const rows = Object.entries(slice.yhat ?? {}).map(([site, share]) => {
      const bar = document.createElement("span");
      bar.className = "bar";
      bar.style.width = `${100 * share}%`;
      const row = tableRow(site, `${(100 * share).toFixed(share > 0.995 || share < 0.005 ? 1 : 0)} %`);
      const cell = document.createElement("td");
      cell.setAttribute("aria-hidden", "true");
      cell.append(bar);
      row.firstElementChild.after(cell);
      return row;
    });
    this.find(".yhat tbody").replaceChildren(...rows);
  }

  async download(kind) {
    const name = kind === "png" ? `mask/${this.slice}.png` : FILES[kind];
    try {
      const blob = await fetchFile(this.answer.id, name);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      const stem = this.image.name.replace(/(\.nii)?\.[^.]*$/, "") || "image";
      link.download = `${stem}_mask${ENDINGS[kind]}`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    } catch (error) {
      this.say(error.message);
    }
  }
}

/** What a panel shows, in a few words for a reader of the screen. */
export function inShort(answer) {
  const slices = answer.slices.length;
  const foreign = answer.slices.filter((slice) => slice.foreign).length;
  const told = slices > 1 ? `${slices} slices, mostly ${networkName(answer.model)}` : heading(answer.model);
  return foreign ? `${told}, ${slices > 1 ? `${foreign} slices are foreign` : "a foreign image"}` : told;
}

/** A network's name for people. */
export function networkName(name) {
  if (name === "selector") return "the selector's choice";
  return name === "global" ? "global" : name.replace(/^personal\./, "");
}

function shareName(model) {
  const parts = model.split(" + ").map((part) => part.split(" "));
  return parts
    .map((part) => (part.length > 1 ? `${Math.round(100 * part[0])} % ` : "") + networkName(part[part.length - 1]))
    .join(" + ");
}

function heading(model) {
  if (model.includes(" + ")) return shareName(model);
  return model === "global" ? "Global network" : `Network of ${networkName(model)}`;
}

function measureRow(label, measures) {
  const pixels = `${Math.round(measures[`${label}_pixels`]).toLocaleString("en")} px`;
  const area = measures[`${label}_mm2`];
  return [label, area === null ? pixels : `${area.toFixed(1)} mm² (${pixels})`];
}

function tableRow(name, value) {
  const row = document.createElement("tr");
  const head = document.createElement("th");
  head.scope = "row";
  head.textContent = name;
  const cell = document.createElement("td");
  cell.textContent = value;
  row.append(head, cell);
  return row;
}
