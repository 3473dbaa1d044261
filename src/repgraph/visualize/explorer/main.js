// State, pointer and keys, and drawing.

const state = { image: -1, layer: 0, overlay: 0, windows: false, walk: true, point: null }; // overlay 0 is none
const view = new View(pictureAt(0));
const surface = find("marks");
let baseIsStale = true;
let frame = 0;

const image = () => pictureAt(state.image);
const layer = () => image().layers[state.layer];
const overlay = () => image().overlays[state.overlay - 1];
const current = () => layer().nodesAt(state.point.x, state.point.y);
const walked = () => (state.walk ? layer().walk(current().nodes) : []); // paths on to the nodes of earlier rounds

function draw(base) {
  baseIsStale ||= base;
  frame ||= requestAnimationFrame(drawNow);
}

function drawNow() {
  frame = 0;
  if (baseIsStale) drawBase(find("base"), view, overlay());
  baseIsStale = false;
  const pinned = image().pins.map(({ x, y }) => layer().nodesAt(x, y));
  drawMarks(surface, view, layer(), pinned, current(), state.windows, walked());
  showStatus(image(), state.point);
  showNodes(layer(), current());
}

/** Choose an image, layer, overlay, windows or walk; values that do not exist fall back to others. */
function choose(change) {
  const before = state.image;
  Object.assign(state, change);
  state.image = clamp(state.image, 0, data.images.length - 1);
  if (state.image !== before) {
    state.point = { x: (image().width - 1) / 2, y: (image().height - 1) / 2 };
    view.fit(image());
  }
  image().photo.onload = () => draw(true);
  state.layer = clamp(state.layer, 0, image().layers.length - 1);
  if (!overlay()) state.overlay = 0;
  fillChoices(state, image(), layer());
  fillLegend(overlay());
  draw(true);
}

/** Set the position to a pixel of the image; return false outside of the image. */
function point(x, y) {
  if (!image().contains(x, y)) return false;
  state.point = { x, y };
  draw(false);
  return true;
}

/** Pin the position, or remove its pin. */
function pin() {
  const position = (one) => JSON.stringify(layer().positionAt(one.x, one.y));
  const others = image().pins.filter((one) => position(one) !== position(state.point));
  const { x, y } = current();
  setPins(others.length < image().pins.length ? others : [...others, { x, y }]);
}

function setPins(pins) {
  image().pins = pins;
  draw(false);
}

function zoom(factor, place = view.toScreen(state.point.x, state.point.y)) {
  view.zoom(factor, ...place);
  draw(true);
}

function step(rows, columns) {
  const { x, y } = current();
  const [across, down] = layer().step;
  state.point.x = clamp(x + columns * across, 0, image().width - 1);
  state.point.y = clamp(y + rows * down, 0, image().height - 1);
  view.show(state.point.x, state.point.y);
  draw(true);
}

// The pointer: a mouse points, drags and clicks; one finger points, two fingers move and zoom.

const place = (event) => [event.offsetX, event.offsetY];
const pressed = new Map(); // places of the pressed pointers
let travelled = 0; // pixels since the press

/** Return the center of the pressed pointers and their distance. */
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

surface.addEventListener("pointerup", (event) => {
  const clicked = pressed.delete(event.pointerId) && event.pointerType === "mouse" && travelled < 4;
  if (clicked && point(...view.toImage(...place(event)))) pin();
});

surface.addEventListener("pointercancel", (event) => pressed.delete(event.pointerId));
surface.addEventListener("wheel", (event) => {
  event.preventDefault();
  const pixels = event.deltaY * (event.deltaMode === 1 ? 30 : 1);
  zoom(Math.exp(-pixels * (event.ctrlKey ? 0.01 : 0.0018)), place(event));
});

// Keys, except for those that the focused control uses itself.

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
  o: () => choose({ overlay: state.overlay + 1 }),
  w: () => choose({ windows: !state.windows }),
  r: () => choose({ walk: !state.walk }),
  ",": () => choose({ image: state.image - 1 }),
  ".": () => choose({ image: state.image + 1 }),
  Escape: () => setPins([]),
};

document.addEventListener("keydown", (event) => {
  const own = event.key === "Enter" ? "button, select, summary" : "select";
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest(own)) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (!Object.hasOwn(KEYS, key)) return;
  event.preventDefault();
  KEYS[key](event.shiftKey ? 5 : 1);
});

for (const name of ["image", "layer", "overlay"]) {
  find(name).addEventListener("change", (event) => choose({ [name]: event.target.selectedIndex }));
}
for (const name of ["windows", "walk"]) {
  find(name).addEventListener("change", (event) => choose({ [name]: event.target.checked }));
}
find("pin").addEventListener("click", pin);

new ResizeObserver(() => {
  view.resize(surface.clientWidth, surface.clientHeight);
  draw(true);
}).observe(surface);

// For scripts and tests: the state, with nodes in pixels of the image and of the stage.
window.explorer = {
  choose,
  point,
  pin,
  get state() {
    const { left, top, scale } = view;
    const nodes = current().nodes.map((node) => {
      const [across, down] = view.toScreen(node.x, node.y);
      return { ...node, across, down };
    });
    const position = layer().positionAt(state.point.x, state.point.y);
    return { ...state, pins: image().pins, position, nodes, paths: walked(), view: { left, top, scale } };
  },
};

choose({ image: 0, layer: Infinity }); // the last layer is the head's, if it has one
