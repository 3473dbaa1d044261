// State, pointer and keys, and drawing.

const state = { image: -1, layer: 0, underlay: 0, windows: false, walk: true, point: null }; // underlay 0 is none
const view = new View(pictures[0]);
const stage = find("stage");
const surface = find("marks");
let current = null; // the position with its nodes
let drawn = []; // its nodes on the screen
let walked = []; // paths on to the nodes of earlier rounds
let baseIsStale = true;
let frame = 0;
let milliseconds = 0; // of the last drawing

const image = () => pictures[state.image];
const layer = () => image().layer(state.layer);
const underlay = () => image().underlays[state.underlay - 1];

function draw(base) {
  baseIsStale ||= base;
  frame ||= requestAnimationFrame(drawNow);
}

function drawNow() {
  frame = 0;
  const start = performance.now();
  if (baseIsStale) drawBase(find("base"), view, underlay());
  const [position, ...pinned] = [state.point, ...image().pins].map(({ x, y }) => layer().nodesAt(x, y));
  current = position;
  walked = state.walk ? layer().walk(current.nodes) : [];
  drawn = drawMarks(surface, view, layer(), pinned, current, state.windows, walked);
  showStatus(image(), state.point);
  showNodes(layer(), current);
  baseIsStale = false;
  milliseconds = performance.now() - start;
}

/** Choose an image, layer, underlay, windows or walk; values that do not exist fall back to others. */
function choose(change) {
  const before = state.image;
  Object.assign(state, change);
  state.image = Math.min(Math.max(state.image, 0), pictures.length - 1);
  if (state.image !== before) {
    state.point = { x: (image().width - 1) / 2, y: (image().height - 1) / 2 };
    view.fit(image());
  }
  if (!image().photo.complete) image().photo.addEventListener("load", () => draw(true), { once: true });
  state.layer = Math.min(Math.max(state.layer, 0), image().layers.length - 1);
  if (!underlay()) state.underlay = 0;
  fillChoices(state, image(), layer());
  fillLegend(layer(), underlay());
  draw(true);
}

/** Set the position to a pixel of the image; return false outside of the image. */
function point(x, y) {
  if (!(x >= -0.5 && y >= -0.5 && x < image().width - 0.5 && y < image().height - 0.5)) return false; // NaN too
  state.point = { x, y };
  draw(false);
  return true;
}

/** Pin the position, or remove its pin. */
function pin() {
  const { pins } = image();
  const [row, column] = layer().positionAt(state.point.x, state.point.y);
  const same = pins.findIndex((one) => String(layer().positionAt(one.x, one.y)) === String([row, column]));
  const [x, y] = layer().centre(row, column);
  if (same >= 0) pins.splice(same, 1);
  else pins.push({ x, y });
  draw(false);
}

function unpinAll() {
  image().pins = [];
  draw(false);
}

function zoom(factor, across, down) {
  const at = view.toScreen(state.point.x, state.point.y);
  view.zoom(factor, across ?? at[0], down ?? at[1]);
  draw(true);
}

function step(rows, columns) {
  const [row, column] = layer().positionAt(state.point.x, state.point.y);
  const [x, y] = layer().centre(row + rows, column + columns);
  const inside = (at, size) => Math.min(Math.max(at, 0), size - 1);
  state.point = { x: inside(x, image().width), y: inside(y, image().height) };
  view.show(state.point.x, state.point.y);
  draw(true);
}

// The pointer: a mouse points, drags and clicks; one finger points, two fingers move and zoom.

const pressed = new Map(); // places of the pressed pointers
let travelled = 0; // pixels since the press

function place(event) {
  const box = stage.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

/** Return the centre of the pressed pointers and their distance. */
function gesture() {
  const [a, b = a] = [...pressed.values()];
  return { x: (a[0] + b[0]) / 2, y: (a[1] + b[1]) / 2, apart: Math.hypot(a[0] - b[0], a[1] - b[1]) || 1 };
}

surface.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  pressed.set(event.pointerId, place(event));
  surface.setPointerCapture(event.pointerId);
  travelled = 0;
  if (event.pointerType !== "mouse" && pressed.size === 1) point(...view.toImage(...place(event)));
});

surface.addEventListener("pointermove", (event) => {
  const mouse = event.pointerType === "mouse";
  if (pressed.size < (mouse ? 1 : 2)) return point(...view.toImage(...place(event)));
  const before = gesture();
  pressed.set(event.pointerId, place(event));
  const after = gesture();
  travelled += Math.hypot(after.x - before.x, after.y - before.y);
  if (mouse && travelled < 4) return;
  view.zoom(after.apart / before.apart, after.x, after.y);
  view.move(after.x - before.x, after.y - before.y);
  draw(true);
});

function release(event) {
  const clicked = pressed.delete(event.pointerId) && event.type === "pointerup" && event.pointerType === "mouse";
  if (clicked && travelled < 4 && point(...view.toImage(...place(event)))) pin();
}

surface.addEventListener("pointerup", release);
surface.addEventListener("pointercancel", release);
stage.addEventListener("wheel", (event) => {
  event.preventDefault();
  const pixels = event.deltaY * (event.deltaMode === 1 ? 30 : 1);
  zoom(Math.exp(-pixels * (event.ctrlKey ? 0.01 : 0.0018)), ...place(event));
});

// Keys, except for those that the focused control uses.

const KEYS = {
  ArrowLeft: (far) => step(0, -far),
  ArrowRight: (far) => step(0, far),
  ArrowUp: (far) => step(-far, 0),
  ArrowDown: (far) => step(far, 0),
  Enter: pin,
  "+": () => zoom(1.4),
  "=": () => zoom(1.4), // the key of + without Shift
  "-": () => zoom(1 / 1.4),
  0: () => zoom(0),
  "[": () => choose({ layer: state.layer - 1 }),
  "]": () => choose({ layer: state.layer + 1 }),
  u: () => choose({ underlay: state.underlay + 1 }),
  w: () => choose({ windows: !state.windows }),
  r: () => choose({ walk: !state.walk }),
  ",": () => choose({ image: state.image - 1 }),
  ".": () => choose({ image: state.image + 1 }),
  Escape: unpinAll,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const own = event.target.closest("button, select, input");
  if (own && (event.key.startsWith("Arrow") || event.key === "Enter")) return;
  if (own && own.tagName === "SELECT" && event.key.length === 1) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (!Object.hasOwn(KEYS, key)) return;
  event.preventDefault();
  KEYS[key](event.shiftKey ? 5 : 1);
});

for (const name of ["image", "layer", "underlay"]) {
  find(name).addEventListener("change", (event) => choose({ [name]: Number(event.target.value) }));
}
for (const name of ["windows", "walk"]) {
  find(name).addEventListener("change", (event) => choose({ [name]: event.target.checked }));
}
find("pin").addEventListener("click", pin);

new ResizeObserver(() => {
  const { width, height } = stage.getBoundingClientRect();
  view.resize(width, height);
  draw(true);
}).observe(stage);

// For scripts and tests: the state, with nodes in pixels of the image and of the stage.
window.explorer = {
  choose,
  point,
  pin,
  get state() {
    const { left, top, scale } = view;
    const pins = image().pins.map((one) => ({ ...one }));
    const position = current && { x: current.x, y: current.y, row: current.row, column: current.column };
    return { ...state, pins, position, nodes: drawn, paths: walked, view: { left, top, scale }, milliseconds };
  },
};

find("title").textContent = data.title || "RepGraph explorer";
find("about").textContent = data.about;
choose({ image: 0, layer: Infinity }); // the last layer is the head's, if it has one
