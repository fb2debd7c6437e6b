// The page: uploads, the list of images, and one or two panels that show the same slice.

import { filesOf, imagesOf } from "./dropped.js";
import { Panel, inShort } from "./panel.js";
import { Problem, model, setToken, takeToken } from "./server.js";

const $ = (id) => document.getElementById(id);
const state = { info: null, images: [], current: -1, panels: [], slice: 1, overlay: true };

async function start() {
  takeToken();
  try {
    state.info = await model();
  } catch (error) {
    $("login").hidden = error.status !== 401;
    say(error.status === 401 ? "" : error.message);
    if (error.status === 401) $("token").focus();
    return;
  }
  $("login").hidden = true;
  $("main").hidden = false;
  $("task").textContent = state.info.task;
  $("most").textContent = Math.round(state.info.most_bytes / 1048576);
  const { minutes, keeps } = state.info;
  $("kept").textContent = keeps
    ? "Whoever runs this service keeps them, with their masks."
    : `The service holds them in memory, for ${minutes} minutes at most, and sends them nowhere.`;
  $("version").textContent = `fedsm ${state.info.version}, ${state.info.sites.length} sites.`;
  $("legend").replaceChildren(...Object.values(state.info.labels).map(legendItem));
  $("compare").disabled = state.info.choices.length < 2;
  state.panels = [newPanel()];
}

function newPanel() {
  return new Panel($("panels"), state.info, { step, ready: onReady, failed: onFailed });
}

function legendItem(label) {
  const item = document.createElement("li");
  const patch = document.createElement("span");
  patch.className = "patch";
  patch.style.background = label.colour;
  item.append(patch, label.name);
  return item;
}

function say(text) {
  $("status").textContent = text;
}

// Images

async function add(files) {
  const images = await imagesOf(files);
  const small = images.filter((image) => image.size <= state.info.most_bytes);
  if (small.length < images.length) say("An image is larger than this service takes.");
  if (!small.length) return;
  state.images.push(...small);
  open(state.images.length - small.length);
}

function open(index) {
  if (index < 0 || index >= state.images.length) return;
  state.current = index;
  state.slice = 1;
  $("work").hidden = false;
  listCases();
  say(`Segmenting ${state.images[index].name}`);
  for (const panel of state.panels) panel.load(state.images[index]);
}

function listCases() {
  $("cases").replaceChildren(
    ...state.images.map((image, index) => {
      const item = document.createElement("li");
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = image.name;
      if (index === state.current) button.setAttribute("aria-current", "true");
      button.addEventListener("click", () => open(index));
      item.append(button);
      return item;
    }),
  );
}

// Slices and overlay

function onReady(panel) {
  const count = panel.slices;
  if (panel === state.panels[0] && state.slice === 1) state.slice = Math.ceil(count / 2);
  $("slice").max = count;
  $("slice-label").hidden = count < 2;
  say(`${state.images[state.current].name}: ${inShort(panel.answer)}`);
  show();
}

function onFailed(panel, error) {
  say(error instanceof Problem && error.status ? "This image cannot be segmented." : error.message);
}

function step(count) {
  const most = Math.max(...state.panels.map((panel) => panel.slices));
  state.slice = Math.max(1, Math.min(most, state.slice + count));
  show();
}

function show() {
  $("slice").value = state.slice;
  $("slice-shown").textContent = `${state.slice} of ${$("slice").max}`;
  $("opacity-shown").textContent = state.overlay ? `${$("opacity").value} %` : "off";
  for (const panel of state.panels) panel.show(state.slice, opacity());
}

function opacity() {
  return state.overlay ? Number($("opacity").value) : 0;
}

function changeOverlay(change) {
  state.overlay = true;
  $("opacity").value = Number($("opacity").value) + change;
  show();
}

// Two networks side by side

function compare(wanted) {
  $("compare").checked = wanted;
  document.body.classList.toggle("two", wanted);
  if (wanted && state.panels.length < 2) {
    const second = newPanel();
    second.select.value = another(state.panels[0]);
    state.panels.push(second);
    if (state.current >= 0) second.load(state.images[state.current]);
  } else if (!wanted && state.panels.length > 1) {
    state.panels.pop().remove();
  }
}

/** A network that is not the one shown: the global one, or that of the site which the image resembles most. */
function another(panel) {
  const yhat = panel.answer?.slices[state.slice - 1]?.yhat ?? {};
  const [likely] = Object.keys(yhat).sort((a, b) => yhat[b] - yhat[a]);
  const used = [panel.select.value, panel.answer?.slices[state.slice - 1]?.model];
  const order = ["global", `personal.${likely}`, ...state.info.choices];
  return order.find((name) => state.info.choices.includes(name) && !used.includes(name));
}

// Events

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken($("token").value.trim());
  $("token").value = "";
  start().then(() => state.info || say("This is not the token."));
});
$("files").addEventListener("change", () => {
  add([...$("files").files]);
  $("files").value = "";
});
$("slice").addEventListener("input", () => step(Number($("slice").value) - state.slice));
$("opacity").addEventListener("input", () => changeOverlay(0));
$("compare").addEventListener("change", () => compare($("compare").checked));

for (const kind of ["dragenter", "dragover"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    document.body.classList.add("dragging");
  });
}
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) document.body.classList.remove("dragging");
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dragging");
  if (state.info) filesOf(event.dataTransfer).then(add, () => say("What was dropped cannot be read."));
});

document.addEventListener("keydown", (event) => {
  const inField = event.target.closest("input:not([type=checkbox], [type=range]), select, textarea");
  if (inField || event.ctrlKey || event.altKey || event.metaKey || !state.info) return;
  const keys = {
    o: () => ((state.overlay = !state.overlay), show()),
    "[": () => changeOverlay(-10),
    "]": () => changeOverlay(10),
    c: () => !$("compare").disabled && compare(!$("compare").checked),
    n: () => open(state.current + 1),
    p: () => open(state.current - 1),
  };
  const act = keys[event.key.toLowerCase()];
  if (!act || $("work").hidden) return;
  event.preventDefault();
  act();
});

window.addEventListener("pagehide", () => state.panels.forEach((panel) => panel.drop()));
start();
