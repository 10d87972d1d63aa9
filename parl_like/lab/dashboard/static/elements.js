// Elements and words of the page. Texts of runs become text nodes: nothing here reads HTML.
"use strict";
const lab = {};

lab.h = (tag, attributes = {}, ...children) => {
  const element = tag.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
};

lab.fill = (element, ...children) => element.replaceChildren(...children.flat().filter((child) => child !== null));
lab.at = (id) => document.getElementById(id);

const PLAIN = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const known = (value) => typeof value === "number" && Number.isFinite(value);

// 1234.5 → 1,234   0.01234 → 0.0123   1234567 → 1.23M   not known → –
lab.number = (value) => {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e15) return value.toExponential(2);
  if (size >= 1e9) return `${(value / 1e9).toPrecision(3)}G`;
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)}M`;
  if (Number.isInteger(value) || size >= 1000) return PLAIN.format(value);
  return size >= 0.001 || size === 0 ? String(Number(value.toPrecision(3))) : value.toExponential(1);
};

lab.count = (value) => (known(value) ? PLAIN.format(value) : "–");
lab.rate = (value) => (known(value) ? `${lab.number(value >= 100 ? Math.round(value) : value)}/s` : "–");

lab.seconds = (value) => {
  if (!known(value)) return "–";
  if (value < 1e-3) return `${Number((value * 1e6).toPrecision(2))} µs`;
  if (value < 1) return `${Number((value * 1e3).toPrecision(2))} ms`;
  if (value < 100) return `${value.toFixed(1)} s`;
  const minutes = Math.floor(value / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
};

lab.bytes = (value) => (value < 1e6 ? `${Math.max(1, Math.round(value / 1e3))} kB` : `${(value / 1e6).toFixed(1)} MB`);

lab.colours = 10;
lab.colour = (index) => getComputedStyle(document.documentElement).getPropertyValue(`--c${index % lab.colours}`).trim();
lab.style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

lab.choose = (select, options, value, change) => {
  const shown = options.map(([key, text]) => lab.h("option", { value: key, selected: key === value }, text));
  lab.fill(select, shown);
  select.value = value;
  select.onchange = () => change(select.value);
};
