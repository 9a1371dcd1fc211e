// A grid over any number of pictures: only the tiles in sight exist. It is a listbox whose focus stays on the scrolling
// box itself (aria-activedescendant), so tiles may come and go while somebody uses the keyboard or a screen reader.
import { h } from "./dom.js";
import { clear, watch } from "./pictures.js";
import { Pointer } from "./pointer.js";

export const GAP = 8;
const MOST_TILES = 96; // three nodes each: larger screens get larger tiles
const SETTLE = 70; // ms of quiet after a jump before pictures are asked for

export class Grid {
  // `look(n)` describes a picture: {src, name, tag, color, note, faded}. `enlarge(index)` shows it alone; `enter(index)` is
  // what the key Enter does.
  constructor(box, { look, enlarge, enter, changed, unreadable, size = 148 }) {
    Object.assign(this, { box, look, enlarge, enter, changed: changed ?? (() => {}), unreadable, size });
    this.items = [];
    this.selected = new Set();
    this.current = 0; // the index that has the focus
    this.anchor = 0; // where a range starts
    this.tiles = new Map(); // index -> element
    this.free = [];
    this.picking = false; // on a touch screen: taps select
    this.toggles = false; // a click or Space takes a picture in or out, and moving selects nothing
    this.sizer = h("div", { class: "sizer", role: "presentation" });
    this.band = h("div", { class: "band", hidden: true });
    this.sizer.append(this.band);
    box.replaceChildren(this.sizer);
    box.setAttribute("role", "listbox");
    box.setAttribute("aria-multiselectable", "true");
    box.tabIndex = 0;
    box.addEventListener("scroll", () => this.scrolled(), { passive: true });
    new Pointer(this);
    new ResizeObserver(() => this.measure()).observe(box);
    this.top = 0; // where the box is scrolled to: asking the box itself would lay out the page
    this.measure();
  }

  get n() {
    return this.items[this.current];
  }

  // Another list. The current picture and the selection are kept where the new list still has them.
  show(items, { current = null, selected = this.selected } = {}) {
    const before = this.items.length ? this.n : null;
    Object.assign(this, { items, selected });
    for (const [index, tile] of this.tiles) if (index >= items.length) this.drop(index, tile);
    if (this.selected.size) {
      const has = new Set(items);
      for (const n of this.selected) if (!has.has(n)) this.selected.delete(n);
    }
    const wanted = current ?? before;
    const found = wanted === null ? -1 : items.indexOf(wanted);
    this.current = this.anchor = Math.max(0, found);
    if (found < 0) this.scrollTo(0);
    if (!this.selected.size && items.length && !this.toggles) this.selected.add(this.n);
    this.measure(true);
    if (found >= 0) this.reveal();
    this.changed();
  }

  setSize(size) {
    this.size = size;
    this.measure(true);
    this.reveal();
  }

  measure(force = false) {
    const style = getComputedStyle(this.box);
    const width = this.box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const height = this.box.clientHeight;
    if (width <= 0 || height <= 0) return;
    if (!force && width === this.width && height === this.height) return;
    const first = Math.floor(this.top / this.rowHeight) * this.columns;
    const row = Math.floor(this.current / this.columns) * this.rowHeight;
    const inSight = !force && row + this.tile > this.top && row < this.top + this.height;
    const before = `${this.columns} ${this.tile}`;
    Object.assign(this, { width, height });
    for (let size = this.size; ; size += 8) {
      this.columns = Math.max(width < 480 ? 3 : 2, Math.floor((width + GAP) / (size + GAP)));
      this.tile = (width - GAP * (this.columns - 1)) / this.columns;
      this.rowHeight = this.tile + GAP;
      if (this.columns * (Math.ceil(height / this.rowHeight) + 2) <= MOST_TILES || this.columns <= 3) break;
    }
    this.rows = Math.ceil(this.items.length / this.columns);
    this.sizer.style.height = `${Math.max(0, this.rows * this.rowHeight - GAP)}px`;
    const same = before === `${this.columns} ${this.tile}`;
    this.scrollTo(force || same || !first ? this.top : Math.floor(first / this.columns) * this.rowHeight);
    if (!same) for (const [index, tile] of this.tiles) this.drop(index, tile);
    if (inSight) this.reveal();
    this.render();
  }

  scrolled() {
    const moved = Math.abs(this.box.scrollTop - this.top);
    this.top = this.box.scrollTop;
    clearTimeout(this.settling);
    const far = moved > this.height; // pictures that only fly past are not asked for
    if (far) this.settling = setTimeout(() => this.render(), SETTLE);
    this.render(!far);
  }

  render(pictures = true) {
    if (!this.rowHeight) return;
    const top = Math.max(0, Math.floor(this.top / this.rowHeight) - 1);
    const bottom = Math.min(this.rows, Math.ceil((this.top + this.height) / this.rowHeight) + 1);
    const first = top * this.columns;
    const last = Math.min(this.items.length, bottom * this.columns);
    for (const [index, tile] of this.tiles) if (index < first || index >= last) this.drop(index, tile);
    for (let index = first; index < last; index++) {
      let tile = this.tiles.get(index);
      if (!tile) {
        tile = this.free.pop() ?? this.make();
        this.shuffled = true;
        this.tiles.set(index, tile);
        tile.id = `${this.box.id}-${index}`;
        tile.style.width = tile.style.height = `${this.tile}px`;
        const [row, column] = [Math.floor(index / this.columns), index % this.columns];
        tile.style.transform = `translate(${column * (this.tile + GAP)}px, ${row * this.rowHeight}px)`;
        tile.setAttribute("aria-posinset", index + 1);
        tile.index = index;
        tile.n = null;
      }
      this.paint(tile, pictures);
    }
    for (const tile of this.free) tile.remove();
    this.free = [];
    clearTimeout(this.sorting);
    if (this.shuffled) this.sorting = setTimeout(() => this.sort(), 2 * SETTLE);
    const active = this.tiles.get(this.current);
    if (active) this.box.setAttribute("aria-activedescendant", active.id);
    else this.box.removeAttribute("aria-activedescendant");
  }

  // Tiles in the order of the list, for those who read the page in the order of its source.
  sort() {
    this.shuffled = false;
    this.sizer.append(...[...this.tiles.values()].sort((a, b) => a.index - b.index));
  }

  make() {
    const image = h("img", { alt: "", draggable: "false", decoding: "async", fetchpriority: "low" });
    const tag = h("span", { class: "tag" });
    const tile = h("div", { class: "tile", role: "option" }, image, tag);
    watch(image, tile, () => this.unreadable(tile.n));
    Object.assign(tile, { image, tag });
    this.sizer.append(tile);
    return tile;
  }

  drop(index, tile) {
    tile.image.removeAttribute("src"); // also gives up a request that is under way
    this.tiles.delete(index);
    this.free.push(tile);
  }

  paint(tile, pictures = true) {
    const n = this.items[tile.index];
    const look = this.look(n, tile.index);
    if (tile.n !== n) {
      clear(tile.image, tile);
      tile.n = n;
    }
    if (pictures && tile.image.getAttribute("src") !== look.src) tile.image.src = look.src;
    const chosen = this.selected.has(n);
    const current = tile.index === this.current;
    const text = [look.name, look.said ?? look.tag, look.note].filter(Boolean).join(", ");
    const painted = [n, text, look.tag, look.color, look.faded, chosen, current, this.items.length].join("|");
    if (tile.painted === painted) return;
    tile.painted = painted;
    tile.tag.textContent = look.tag;
    tile.tag.dataset.color = look.color ?? "";
    tile.classList.toggle("chosen", chosen);
    tile.classList.toggle("current", current);
    tile.classList.toggle("faded", Boolean(look.faded));
    tile.setAttribute("aria-selected", chosen);
    tile.setAttribute("aria-setsize", this.items.length);
    tile.setAttribute("aria-label", text);
    tile.title = text;
  }

  refresh() {
    for (const tile of this.tiles.values()) this.paint(tile);
  }

  // The server is there: ask it once more for pictures that did not come.
  again() {
    for (const tile of this.tiles.values()) {
      if (!tile.classList.contains("waiting")) continue;
      clear(tile.image, tile);
      this.paint(tile);
    }
  }

  // ------------------------------------------------------------------------------------------------------ selection

  scrollTo(top) {
    this.box.scrollTop = top;
    this.top = this.box.scrollTop; // no further than the end
  }

  reveal(index = this.current) {
    const top = Math.floor(index / this.columns) * this.rowHeight;
    if (top < this.top) this.scrollTo(top);
    else if (top + this.tile > this.top + this.height - 16) this.scrollTo(top + this.tile - this.height + 24);
  }

  // Move to an index: alone, as the end of a range from the anchor (`extend`), or without selecting (`only`).
  go(index, { extend = false, only = this.toggles } = {}) {
    if (!this.items.length) return;
    this.current = Math.max(0, Math.min(this.items.length - 1, index));
    if (extend) {
      this.selected = new Set(this.range(this.anchor, this.current));
    } else if (!only) {
      this.selected = new Set([this.n]);
      this.anchor = this.current;
      this.picking = false;
    }
    this.reveal();
    this.render();
    this.changed();
  }

  range(a, b) {
    return this.items.slice(Math.min(a, b), Math.max(a, b) + 1);
  }

  toggle(index) {
    const n = this.items[index];
    if (!this.selected.delete(n)) this.selected.add(n);
    this.current = this.anchor = index;
    this.render();
    this.changed();
  }

  all() {
    this.selected = new Set(this.items);
    this.refresh();
    this.changed();
  }

  none() {
    this.selected = new Set();
    this.picking = false;
    this.refresh();
    this.changed();
  }

  // The selected pictures in the order of the grid.
  chosen() {
    if (this.selected.size === 1) return [...this.selected]; // the usual case needs no look at 100,000 others
    if (this.selected.size === this.items.length) return [...this.items];
    return this.items.filter((n) => this.selected.has(n));
  }

  // Keys that move and select, as in a file manager. Says whether it took the key.
  key(event) {
    const { key, shiftKey, ctrlKey, metaKey, repeat } = event;
    const control = ctrlKey || metaKey;
    const page = Math.max(1, Math.floor(this.height / this.rowHeight)) * this.columns;
    const steps = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -this.columns,
      ArrowDown: this.columns,
      PageUp: -page,
      PageDown: page,
      Home: -this.current,
      End: this.items.length - 1 - this.current,
    };
    if (key in steps) {
      const index = this.current + steps[key];
      const vertical = Math.abs(steps[key]) > 1 && !["Home", "End"].includes(key);
      if (vertical && key.startsWith("Arrow") && (index < 0 || index >= this.items.length)) return true;
      this.go(index, { extend: shiftKey, only: this.toggles || control });
    } else if (control && key.toLowerCase() === "a") this.all();
    else if (key === " ") repeat || this.toggle(this.current);
    else if (key === "Escape" && this.selected.size) this.none();
    else if (key === "Enter") repeat || this.enter(this.current);
    else return false;
    return true;
  }
}
