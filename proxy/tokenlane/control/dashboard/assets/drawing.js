"use strict";
// What the page is drawn with: elements, numbers as people read them, small pictures. Text goes in
// as text only: names of models and replicas come from elsewhere.

const SVG = "http://www.w3.org/2000/svg";

function el(tag, how = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(how)) {
    if (value === undefined || value === null) continue;
    if (key === "class") made.className = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.map((child) => child ?? ""));
  return made;
}

// -- numbers as people read them ------------------------------------------------------------

const NONE = "–";
const known = (value) => value !== null && value !== undefined;

function seconds(value) {
  if (!known(value)) return [NONE, ""];
  if (value === 0) return ["0", "ms"];
  // What would be rounded to 1000 of a unit is 1 of the next.
  if (value < 0.9995e-3) return [String(Math.round(value * 1e6)), "µs"];
  if (value < 0.9995) return [(value * 1e3).toPrecision(value < 0.0995 ? 2 : 3), "ms"];
  return [value < 100 ? value.toPrecision(3) : String(Math.round(value)), "s"];
}
const time = (value) => seconds(value).join(" ").trim();

function count(value) {
  if (!known(value)) return NONE;
  if (Math.abs(value) >= 1e4) {
    const rounded = Number(value.toPrecision(3));
    const units = [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]];
    const [unit, size] = units.find((one) => Math.abs(rounded) >= one[1]);
    return (rounded / size).toPrecision(3) + unit;
  }
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString("en");
}
const percent = (value) => (known(value) ? (value * 100).toFixed(value < 0.0995 && value > 0 ? 1 : 0) + " %" : NONE);
const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

function duration(value) {
  const days = Math.floor(value / 86400), hours = Math.floor(value / 3600) % 24;
  const minutes = Math.floor(value / 60) % 60;
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min` : `${Math.floor(value)} s`;
}

// -- pictures --------------------------------------------------------------------------------

function path(points, high, width, height) {
  let text = "", drawing = false;
  points.forEach((value, at) => {
    if (!known(value)) { drawing = false; return; }
    const x = (width * at) / Math.max(points.length - 1, 1);
    const y = height - (height * value) / high;
    // A value between unknown ones is a dot.
    text += drawing ? `L${x.toFixed(1)} ${y.toFixed(1)}` : `M${x.toFixed(1)} ${y.toFixed(1)}h0`;
    drawing = true;
  });
  return text;
}

// most: a value that the picture has room for, whatever is in the lines.
function spark(lines, length, label, how = "line", most = 0) {
  const width = 180, height = 40;
  const made = document.createElementNS(SVG, "svg");
  made.setAttribute("class", how);
  made.setAttribute("viewBox", `0 0 ${width} ${height}`);
  made.setAttribute("preserveAspectRatio", "none");
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", label);
  const padded = lines.map((line) => Array(Math.max(length - line.length, 0)).fill(null).concat(line));
  const high = Math.max(...padded.flat().filter(known), most, 1e-9) * 1.05;
  padded.forEach((line, at) => {
    const add = (d, kind) => {
      const piece = document.createElementNS(SVG, "path");
      piece.setAttribute("d", d);
      if (kind) piece.setAttribute("class", kind);
      made.append(piece);
    };
    if (at === 0) {
      const first = line.findIndex(known), last = line.findLastIndex(known);
      const x = (place) => ((width * place) / Math.max(line.length - 1, 1)).toFixed(1);
      if (first >= 0) {
        const filled = line.slice(first, last + 1).map((value) => value ?? 0);
        let d = `M${x(first)} ${height}`;
        filled.forEach((value, place) => { d += `L${x(first + place)} ${(height - (height * value) / high).toFixed(1)}`; });
        add(`${d}L${x(last)} ${height}Z`, "area");
      }
    }
    add(path(line, high, width, height), at ? "second" : "");
  });
  return made;
}

function bar(part, text, level = "") {
  const fill = el("b", { class: level });
  fill.style.width = `${Math.min(Math.max(part ?? 0, 0), 1) * 100}%`;
  return el("div", { class: "bar" }, el("i", {}, fill), el("span", {}, text));
}
