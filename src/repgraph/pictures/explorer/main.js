// What is chosen, what the pointer and the keys do, and when to draw.

const state = { image: 0, layer: 0, group: 0, underlay: "none", opacity: 0.6, point: null };
const view = new View();
const stage = find("stage");
const timing = { draws: 0, last: 0, worst: 0 }; // of the nodes, in milliseconds
let current = null; // what the position looks at
let drawn = []; // where its nodes are on the screen
let stale = { base: true, marks: true };
let frame = 0;

const image = () => pictures[state.image];
const layer = () => image().layer(state.layer);

/** What lies over the photograph: labels or objects, or a map of the layer. */
function shown() {
  const name = state.underlay;
  if (name === "reach" || name === "chosen") return { name, maps: layer().maps[name], layer: layer(), set: state.group };
  const underlay = image().underlays.find((one) => one.title === name);
  return underlay ? { name, underlay } : null;
}

function draw(base) {
  stale = { base: stale.base || base, marks: true };
  frame ||= requestAnimationFrame(drawNow);
}

function drawNow() {
  frame = 0;
  const start = performance.now();
  if (stale.base) drawBase(find("base"), view, image(), shown(), state.opacity);
  const { x, y } = state.point ?? {};
  current = state.point ? layer().look(...layer().at(x, y), state.group) : null;
  const pinned = image().pins.map((pin) => layer().look(...layer().at(pin.x, pin.y), state.group));
  drawn = drawMarks(find("marks"), view, image(), layer(), pinned, current);
  showHere(image(), state.point);
  showNodes(layer(), current);
  if (current) speak(image(), layer(), current, state.point);
  stale = { base: false, marks: false };
  timing.last = performance.now() - start;
  timing.worst = Math.max(timing.worst, timing.last);
  timing.draws++;
}

/** Choose an image, layer, group, underlay or opacity; whatever does not exist there falls back. */
function choose(change) {
  const before = state.image;
  Object.assign(state, change);
  state.image = Math.min(Math.max(state.image, 0), pictures.length - 1);
  if (state.image !== before) {
    state.point = { x: (image().width - 1) / 2, y: (image().height - 1) / 2 };
    view.fit(image());
    if (!image().photo.complete) image().photo.addEventListener("load", () => draw(true), { once: true });
  }
  state.layer = Math.min(Math.max(state.layer, 0), image().titles.length - 1);
  if (state.group >= layer().sets || state.group < 0) state.group = 0;
  if (!underlayNames(image()).some(([value]) => value === state.underlay)) state.underlay = "none";
  fillChoices(state, image(), layer(), choose);
  showPins(image().pins, layer(), takeAway);
  fillLegend(view, image(), layer(), shown());
  draw(true);
}

/** Make a pixel of the image the position; outside of the image nothing changes. */
function point(x, y) {
  if (!(x >= -0.5 && y >= -0.5 && x < image().width - 0.5 && y < image().height - 0.5)) return false; // NaN too
  state.point = { x, y };
  draw(false);
  return true;
}

/** Pin the position, or take its pin away. */
function pin() {
  if (!state.point) return;
  const [row, column] = layer().at(state.point.x, state.point.y);
  const same = image().pins.findIndex((one) => String(layer().at(one.x, one.y)) === String([row, column]));
  if (same >= 0) return takeAway(same);
  const [x, y] = layer().place(row, column);
  image().pins.push({ x, y });
  showPins(image().pins, layer(), takeAway);
  draw(false);
}

function takeAway(index) {
  if (index === null) image().pins.length = 0;
  else image().pins.splice(index, 1);
  showPins(image().pins, layer(), takeAway);
  draw(false);
}

function zoom(factor, across, down) {
  const at = state.point ? view.toScreen(state.point.x, state.point.y) : [view.width / 2, view.height / 2];
  view.zoom(factor, across ?? at[0], down ?? at[1], image());
  draw(true);
}

function fit() {
  view.fit(image());
  draw(true);
}

function step(rows, columns) {
  const [row, column] = state.point ? layer().at(state.point.x, state.point.y) : [0, 0];
  const to = layer().place(
    Math.min(Math.max(row + rows, 0), layer().rows - 1),
    Math.min(Math.max(column + columns, 0), layer().columns - 1),
  );
  const inside = [Math.min(to[0], image().width - 1), Math.min(to[1], image().height - 1)];
  point(...inside);
  if (view.reveal(...inside, image())) draw(true);
}

// The pointer: a mouse points, drags and clicks; one finger points, two move and zoom.

const fingers = new Map();
let press = null;

function place(event) {
  const box = stage.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

function spread() {
  const [a, b] = [...fingers.values()];
  return { x: (a[0] + b[0]) / 2, y: (a[1] + b[1]) / 2, apart: Math.hypot(a[0] - b[0], a[1] - b[1]) || 1 };
}

stage.addEventListener("pointerdown", (event) => {
  if (event.target.closest("button")) return;
  const at = place(event);
  if (event.pointerType !== "mouse") {
    fingers.set(event.pointerId, at);
    stage.setPointerCapture(event.pointerId);
    if (fingers.size === 1) point(...view.toImage(...at));
  } else if (event.button === 0) {
    press = { at, moved: false };
    stage.setPointerCapture(event.pointerId);
  }
});

stage.addEventListener("pointermove", (event) => {
  if (event.target.closest("button")) return;
  const at = place(event);
  if (fingers.has(event.pointerId)) {
    const before = fingers.size === 2 ? spread() : null;
    fingers.set(event.pointerId, at);
    if (before) {
      const after = spread();
      view.zoom(after.apart / before.apart, after.x, after.y, image());
      view.move(after.x - before.x, after.y - before.y, image());
      draw(true);
    } else if (fingers.size === 1) {
      point(...view.toImage(...at));
    }
  } else if (press) {
    if (Math.hypot(at[0] - press.at[0], at[1] - press.at[1]) > 4) press.moved = true;
    if (!press.moved) return;
    stage.classList.add("moving");
    view.move(at[0] - press.at[0], at[1] - press.at[1], image());
    press.at = at;
    draw(true);
  } else {
    point(...view.toImage(...at));
  }
});

function release(event) {
  fingers.delete(event.pointerId);
  stage.classList.remove("moving");
  if (press && event.type === "pointerup" && !press.moved && point(...view.toImage(...place(event)))) pin();
  press = null;
}

stage.addEventListener("pointerup", release);
stage.addEventListener("pointercancel", release);
stage.addEventListener(
  "wheel",
  (event) => {
    event.preventDefault();
    const pixels = event.deltaY * (event.deltaMode === 1 ? 30 : 1);
    zoom(Math.exp(-pixels * (event.ctrlKey ? 0.01 : 0.0018)), ...place(event));
  },
  { passive: false },
);

// The keys. Those that a control needs for itself stay with it.

const THEMES = ["auto", "light", "dark"];

function turnTheme() {
  const root = document.documentElement;
  root.dataset.theme = THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length];
  const name = root.dataset.theme;
  find("theme-name").textContent = name[0].toUpperCase() + name.slice(1);
}

function nextUnderlay() {
  const names = underlayNames(image()).map(([value]) => value);
  choose({ underlay: names[(names.indexOf(state.underlay) + 1) % names.length] });
}

const KEYS = {
  ArrowLeft: (far) => step(0, -far),
  ArrowRight: (far) => step(0, far),
  ArrowUp: (far) => step(-far, 0),
  ArrowDown: (far) => step(far, 0),
  Enter: pin,
  "+": () => zoom(1.4),
  "=": () => zoom(1.4),
  "-": () => zoom(1 / 1.4),
  0: fit,
  "[": () => choose({ layer: state.layer - 1 }),
  "]": () => choose({ layer: state.layer + 1 }),
  g: () => choose({ group: state.group + 1 }),
  u: nextUnderlay,
  ",": () => choose({ image: state.image - 1 }),
  ".": () => choose({ image: state.image + 1 }),
  t: turnTheme,
  "?": () => find("keys").showModal(),
  Escape: () => takeAway(null),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || find("keys").open) return;
  const own = event.target.closest("button, select, input");
  if (own && (event.key.startsWith("Arrow") || event.key === "Enter")) return;
  if (own && own.tagName === "SELECT" && event.key.length === 1) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (!Object.hasOwn(KEYS, key)) return;
  event.preventDefault();
  KEYS[key](event.shiftKey ? 5 : 1);
});

find("layer").addEventListener("change", (event) => choose({ layer: Number(event.target.value) }));
find("group").addEventListener("change", (event) => choose({ group: Number(event.target.value) }));
find("opacity").addEventListener("input", (event) => {
  state.opacity = Number(event.target.value) / 100;
  showOpacity(state.opacity);
  draw(true);
});
find("closer").addEventListener("click", () => zoom(1.4, view.width / 2, view.height / 2));
find("farther").addEventListener("click", () => zoom(1 / 1.4, view.width / 2, view.height / 2));
find("fit").addEventListener("click", fit);
find("pin").addEventListener("click", pin);
find("theme").addEventListener("click", turnTheme);
find("help").addEventListener("click", () => find("keys").showModal());

new ResizeObserver(() => {
  const { width, height } = stage.getBoundingClientRect();
  view.resize(width, height, image());
  fillLegend(view, image(), layer(), shown());
  draw(true);
}).observe(stage);

// For scripts and tests: what is chosen, and where the nodes are, in pixels of the image and of the stage.
window.explorer = {
  choose,
  point,
  pin,
  get state() {
    const { left, top, scale } = view;
    const pins = image().pins.map((one) => ({ ...one }));
    const { worst, last, draws } = timing;
    const position = current && { x: current.x, y: current.y, row: current.row, column: current.column };
    return { ...state, pins, position, nodes: drawn, view: { left, top, scale }, timing: { worst, last, draws } };
  },
};

find("title").textContent = given.title || "RepGraph explorer";
find("about").textContent = given.about;
fillStrip((index) => choose({ image: index }));
state.layer = pictures[0].titles.length - 1; // the last is the head's, where there is one
state.point = { x: (image().width - 1) / 2, y: (image().height - 1) / 2 };
image().photo.addEventListener("load", () => draw(true), { once: true });
choose({});
