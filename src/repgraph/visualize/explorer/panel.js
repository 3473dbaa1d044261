// Controls and texts beside the image. Names are always set as text, never as HTML.

const LISTED = 9; // nodes in the list; the picture has all

const find = (id) => document.getElementById(id);

/** Return a new element; content is a text, or a list of texts and elements. */
function element(name, content = [], more = {}) {
  const made = Object.assign(document.createElement(name), more);
  made.append(...[content].flat());
  return made;
}

function number(value) {
  return value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

function percent(weight) {
  if (weight < 0.0005) return "< 0.1 %";
  return `${(100 * weight).toFixed(weight < 0.0995 ? 1 : 0)} %`;
}

function chip(colour) {
  return element("span", "", { className: "chip", style: `--colour: rgb(${colour})` });
}

function underlayNames(image) {
  return ["none", ...image.underlays.map((underlay) => underlay.title), "reach", "received"];
}

function fillSelect(select, titles, index) {
  select.replaceChildren(...titles.map((title, i) => element("option", title, { value: String(i) })));
  select.value = String(index);
}

/** Fill a row with buttons: [content, function, properties]. The focus stays where it is in the row. */
function fillButtons(row, buttons) {
  const focused = [...row.children].indexOf(document.activeElement);
  const made = buttons.map(([content, onclick, more]) => element("button", content, { type: "button", onclick, ...more }));
  row.replaceChildren(...made);
  row.children[focused]?.focus();
}

function fillStrip(choose) {
  find("strip").hidden = pictures.length < 2;
  const thumbnails = pictures.map(({ name, photo }, i) => {
    const content = [element("img", "", { src: photo.src, alt: "" }), element("span", name)];
    return [content, () => choose({ image: i }), { title: name }];
  });
  fillButtons(find("strip"), thumbnails);
}

/** Update everything that depends on the image, layer, group or underlay. */
function fillChoices(state, image, layer, choose) {
  [...find("strip").children].forEach((button, i) => (button.ariaCurrent = String(i === state.image)));
  fillSelect(find("layer"), image.layers.map((one) => one.title), state.layer);
  find("layer").disabled = image.layers.length < 2;
  const groups = Array.from({ length: layer.sets - 1 }, (_, i) => `group ${i + 1} of ${layer.sets - 1}`);
  fillSelect(find("group"), ["mean of all groups", ...groups], state.group);
  find("group-field").hidden = layer.sets < 2;
  const underlays = underlayNames(image).map((underlay) => {
    return [underlay, () => choose({ underlay }), { ariaPressed: String(underlay === state.underlay) }];
  });
  fillButtons(find("underlays"), underlays);
  find("opacity").disabled = state.underlay === "none";
  find("opacity").value = String(Math.round(100 * state.opacity));
  find("opacity-value").textContent = `${find("opacity").value} %`;
  find("windows-field").hidden = layer.node_view < 2;
  find("windows").checked = state.windows;
  find("walk-field").hidden = !layer.before;
  find("walk").checked = state.walk;
}

/** List the nodes of the position: a bar for the weight, and the distance. */
function showNodes(layer, position) {
  const strongest = layer.kind === "affinity";
  find("nodes-title").textContent = strongest ? "Strongest positions" : "Nodes";
  const max = strongest ? position.nodes[0].weight || 1 : 1;
  const rows = position.nodes.slice(0, LISTED).map((node) => {
    const bar = element("i", "", { className: "bar", style: `--share: ${(100 * node.weight) / max}%` });
    const distance = `${number(node.distance)} px away`;
    return element("li", [bar, element("span", percent(node.weight)), element("span", distance)]);
  });
  find("nodes").replaceChildren(...rows);
  const outside = position.outside ? ` · ${position.outside} of ${layer.count} outside` : "";
  find("summary").textContent =
    `reach ${number(position.reach)} px · received ${number(position.received)} × mean${outside}`;
  find("note").textContent = note(layer, position);
}

function note(layer, position) {
  if (layer.kind === "affinity") {
    return (
      `This layer attends to all positions of its map. The page shows the ${layer.count} strongest, ` +
      `which have ${percent(position.share)} of this position's weight; reach and received consider only these.`
    );
  }
  const { grid, node_view: side, rows, columns } = layer;
  const cell = grid < Math.max(rows, columns) ? `${grid} × ${grid} positions of the dashed cell` : "All positions";
  const notes = [];
  if (layer.before) notes.push(`The nodes of this round read the responses of round ${layer.round - 1}.`);
  if (side > 1) notes.push(`A node is the mean of the ${side} × ${side} positions around its centre.`);
  if (grid > 1) notes.push(`${cell} share these nodes; each has its own weights.`);
  return notes.join(" ");
}

/** List the pins, with a button to remove each of them. */
function showPins(pins, layer, change) {
  const buttons = pins.map((pin, i) => {
    const at = layer.centre(...layer.positionAt(pin.x, pin.y)).map(Math.round).join(", ");
    return [`${i + 1} · ${at} ✕`, () => change(i, 1), { ariaLabel: `Remove pin ${i + 1} at ${at}` }];
  });
  if (pins.length > 1) buttons.push(["Remove all", () => change(0, pins.length)]);
  fillButtons(find("pins"), buttons);
}

let speaking = 0;

/** Describe the position for screen readers when it does not change any more. */
function speak(layer, position) {
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    const nodes = position.nodes.slice(0, 3);
    const places = nodes.map(({ weight, x, y }) => `${percent(weight)} at ${Math.round(x)}, ${Math.round(y)}`);
    find("spoken").textContent = `${find("status").textContent}. Strongest of ${layer.count}: ${places.join("; ")}.`;
  }, 400);
}

function showStatus(image, point) {
  const parts = [`x ${Math.round(point.x)}, y ${Math.round(point.y)}`];
  for (const underlay of image.underlays) {
    const entry = underlay.at(point.x, point.y);
    parts.push(` · ${underlay.title}: `);
    if (entry) parts.push(chip(entry.colour), entry.name);
    else parts.push("—");
  }
  find("status").replaceChildren(...parts);
}

function scaleBar(title, ...labels) {
  const canvas = painted(256, 1, (i) => colourAt(i / 255));
  const parts = [element("div", title), canvas, ...labels.map((label) => element("span", label))];
  return element("div", parts, { className: "scale" });
}

/** Explain the marks and colours of the picture. */
function fillLegend(view, layer, shown, state) {
  find("sizes").hidden = layer.kind === "affinity";
  [0.01, 0.1, 0.5].forEach((weight, i) => {
    find("sizes").children[i].style = `--size: ${2 * nodeRadius(view, weight)}px`;
  });
  find("window").hidden = layer.node_view < 2 || !state.windows;
  find("path").hidden = !layer.before || !state.walk;
  const rows = [];
  if (layer.kind === "affinity") rows.push(scaleBar("attention of the strongest positions", "0", "strongest"));
  if (state.underlay in POWERS) {
    const labels = [0, 0.5, 1].map((share) => number(layer[state.underlay].top * share ** POWERS[state.underlay]));
    const titles = { reach: "mean distance of the nodes, pixels", received: "attention received, relative to the mean" };
    rows.push(scaleBar(titles[state.underlay], ...labels));
  }
  if (shown?.underlay) {
    const entries = shown.underlay.entries.map(({ colour, name, share }) => {
      return element("li", [chip(colour), element("b", name, { title: name }), percent(share)]);
    });
    rows.push(element("ul", entries));
  }
  find("legend").replaceChildren(...rows);
}
