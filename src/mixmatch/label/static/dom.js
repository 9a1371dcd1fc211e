// Elements from plain values. Text only ever becomes a text node, so no name of a file or class can be markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "hidden") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

// A button is only ever made with what it does.
export const button = (content, onclick, properties = {}) =>
  h("button", { type: "button", onclick, ...properties }, content);

export const primary = (content, onclick, properties = {}) =>
  button(content, onclick, { class: "primary", ...properties });

// A question whether values are others than when it was asked last. What is as it was is not painted anew: it may have
// the focus, or be pressed just now.
export function differ() {
  let last;
  return (...values) => {
    const now = JSON.stringify(values);
    const other = now !== last;
    last = now;
    return other;
  };
}

// Text that is written again is laid out again, also where it is what it was.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const $ = (selector, root = document) => root.querySelector(selector);

const format = new Intl.NumberFormat("en-US"); // made once: it is asked with every key
export const number = (n) => format.format(n);

export const count = (n, noun, plural = `${noun}s`) => `${number(n)} ${n === 1 ? noun : plural}`;

export const percent = (share) => (share > 0.9995 ? ">99.9 %" : `${(100 * share).toFixed(1)} %`);

export function duration(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  const hours = Math.floor(seconds / 3600);
  return `${hours} h ${Math.round((seconds - 3600 * hours) / 60)} min`;
}

// What a screen reader says, without moving the focus.
export function say(text) {
  $("#spoken").textContent = text;
}

// A line at the bottom that goes away by itself; with a button if there is something to do about it.
let leaving = 0;
export function toast(text, action) {
  const bar = $("#toast");
  const run = () => {
    bar.replaceChildren();
    action.run();
  };
  bar.replaceChildren(h("span", {}, text), action ? button(action.name, run) : "");
  say(text);
  clearTimeout(leaving);
  leaving = setTimeout(() => bar.replaceChildren(), action ? 8000 : 4500);
}
