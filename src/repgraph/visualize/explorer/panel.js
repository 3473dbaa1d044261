// Controls and texts beside the image. Names are always set as text, never as HTML.

const LISTED = 9; // nodes in the list; the picture has all

const find = (id) => document.getElementById(id);

function element(name, text = "", more = {}) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  return Object.assign(made, more);
}

function number(value) {
  return value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

function percent(weight) {
  if (weight < 0.0005) return "< 0.1 %";
  return `${(100 * weight).toFixed(weight < 0.0995 ? 1 : 0)} %`;
}

function chip(colour) {
  const made = element("span", "", { className: "chip" });
  made.style.setProperty("--colour", `rgb(${colour})`);
  return made;
}

function underlayNames(image) {
  return ["none", ...image.underlays.map((underlay) => underlay.title), "reach", "received"];
}

function fillSelect(select, titles, index) {
  select.replaceChildren(...titles.map((title, i) => element("option", title, { value: String(i) })));
  select.value = String(index);
}

function fillStrip(choose) {
  find("strip").hidden = pictures.length < 2;
  const buttons = pictures.map((picture, i) => {
    const button = element("button", "", { type: "button", title: picture.name });
    button.append(element("img", "", { src: picture.photo.src, alt: "" }), element("span", picture.name));
    button.addEventListener("click", () => choose(i));
    return button;
  });
  find("strip").replaceChildren(...buttons);
}

/** Update everything that depends on the image, layer, group or underlay. */
function fillChoices(state, image, layer) {
  [...find("strip").children].forEach((button, i) => button.setAttribute("aria-current", String(i === state.image)));
  fillSelect(find("layer"), image.layers.map((one) => one.title), state.layer);
  find("layer").disabled = image.layers.length < 2;
  const groups = Array.from({ length: layer.sets - 1 }, (_, i) => `group ${i + 1} of ${layer.sets - 1}`);
  fillSelect(find("group"), ["mean of all groups", ...groups], state.group);
  find("group-field").hidden = layer.sets < 2;
  fillSelect(find("underlay"), underlayNames(image), underlayNames(image).indexOf(state.underlay));
  find("opacity").disabled = state.underlay === "none";
  find("opacity").value = String(Math.round(100 * state.opacity));
}

/** List the nodes of the position: a bar for the weight, and the distance. */
function showNodes(layer, position) {
  const strongest = layer.kind === "affinity";
  find("nodes-title").textContent = strongest ? "Strongest positions" : "Nodes";
  const max = strongest ? position.nodes[0].weight || 1 : 1;
  const rows = position.nodes.slice(0, LISTED).map((node) => {
    const row = element("li");
    const distance = element("span", `${number(node.distance)} px`);
    row.append(element("progress", "", { max, value: node.weight }), element("span", percent(node.weight)), distance);
    return row;
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
      `which have ${percent(position.share)} of this position's weight; reach and received attention consider only these.`
    );
  }
  if (layer.grid >= Math.max(layer.rows, layer.columns)) return "All positions share these nodes; each has its own weights.";
  const grid = `${layer.grid} × ${layer.grid} positions of the dashed cell share these nodes; each has its own weights.`;
  return layer.grid > 1 ? grid : "";
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
  const bar = element("div", "", { className: "scale" });
  const canvas = painted(256, 1, (i, pixel) => pixel.set([...colours.subarray(3 * i, 3 * i + 3), 255]));
  bar.append(element("div", title), canvas, ...labels.map((label) => element("span", label)));
  return bar;
}

/** Explain the marks and colours of the picture. */
function fillLegend(layer, shown) {
  find("dots").hidden = layer.kind === "affinity";
  find("windows").hidden = layer.node_view < 2;
  const rows = [];
  if (layer.kind === "affinity") rows.push(scaleBar("attention of the strongest positions", "0", "strongest"));
  if (shown?.maps) {
    const labels = [0, 0.5, 1].map((share) => number(shown.maps.value(share)));
    const reach = shown.name === "reach";
    rows.push(scaleBar(reach ? "mean distance of the nodes, pixels" : "attention received, relative to the mean", ...labels));
  }
  if (shown?.underlay) {
    const list = element("ul");
    for (const entry of shown.underlay.entries) {
      const item = element("li");
      item.append(chip(entry.colour), element("b", entry.name, { title: entry.name }), percent(entry.share));
      list.append(item);
    }
    rows.push(list);
  }
  find("legend").replaceChildren(...rows);
}
