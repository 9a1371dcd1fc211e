// Mouse and touch on a grid: click, Shift, Ctrl and drag as in a file manager; tap and hold on a touch screen.
import { GAP } from "./grid.js";

const DRAG = 5; // pixels before a press becomes a drag
const HOLD = 450; // ms before a touch becomes a selection

export class Pointer {
  constructor(grid) {
    this.grid = grid;
    grid.box.addEventListener("pointerdown", (event) => this.pressed(event));
    grid.box.addEventListener("dblclick", (event) => {
      const index = this.at(event);
      if (index !== null) grid.enlarge(index);
    });
  }

  at(event) {
    const tile = event.target.closest?.(".tile");
    return tile ? tile.index : null;
  }

  pressed(event) {
    if (event.button !== 0 || (event.offsetX > this.grid.box.clientWidth && event.target === this.grid.box)) return;
    const index = this.at(event);
    if (event.pointerType === "touch") return this.touched(event, index);
    event.preventDefault(); // no text selection, no picture dragged away
    this.grid.box.focus({ preventScroll: true });
    const control = event.ctrlKey || event.metaKey;
    const base = control || this.grid.toggles ? new Set(this.grid.selected) : new Set();
    const start = this.point(event);
    let dragged = false;
    let latest = event;
    const pull = () => {
      const box = this.grid.box.getBoundingClientRect();
      const over = latest.clientY < box.top + 24 ? -14 : latest.clientY > box.bottom - 24 ? 14 : 0;
      if (over) {
        this.grid.box.scrollTop += over;
        this.stretch(start, this.point(latest), base);
      }
      scrolling = dragged ? requestAnimationFrame(pull) : 0;
    };
    let scrolling = 0;
    const move = (moved) => {
      latest = moved;
      const end = this.point(moved);
      if (!dragged && Math.hypot(end.x - start.x, end.y - start.y) < DRAG) return;
      if (!dragged) scrolling = requestAnimationFrame(pull);
      dragged = true;
      this.stretch(start, end, base);
    };
    const up = () => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", up);
      window.removeEventListener("pointercancel", up);
      cancelAnimationFrame(scrolling);
      this.grid.band.hidden = true;
      if (dragged) return;
      if (index === null) this.grid.toggles || this.grid.none();
      else if (event.shiftKey) this.grid.go(index, { extend: true });
      else if (control || this.grid.toggles) this.grid.toggle(index);
      else this.grid.go(index);
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", up);
    window.addEventListener("pointercancel", up);
  }

  // A tap shows the picture alone; held down it selects, and from then on taps select.
  touched(event, index) {
    if (index === null) return;
    const began = [event.clientX, event.clientY];
    let held = false;
    const hold = setTimeout(() => {
      if (!this.grid.picking && !this.grid.toggles) this.grid.none(); // the current one was not chosen, and may be out of sight
      held = this.grid.picking = true;
      this.grid.toggle(index);
    }, HOLD);
    const done = (ended) => {
      clearTimeout(hold);
      this.grid.box.removeEventListener("pointerup", done);
      this.grid.box.removeEventListener("pointercancel", done);
      if (held || ended.type === "pointercancel") return;
      if (Math.hypot(ended.clientX - began[0], ended.clientY - began[1]) > 10) return;
      if (this.grid.picking || this.grid.toggles) this.grid.toggle(index);
      else {
        this.grid.go(index);
        this.grid.enlarge(index);
      }
    };
    this.grid.box.addEventListener("pointerup", done);
    this.grid.box.addEventListener("pointercancel", done);
  }

  // Where the pointer is, in the coordinates of the whole list.
  point(event) {
    const box = this.grid.sizer.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  stretch(a, b, base) {
    const [left, right] = [Math.min(a.x, b.x), Math.max(a.x, b.x)];
    const [top, bottom] = [Math.min(a.y, b.y), Math.max(a.y, b.y)];
    const { style } = this.grid.band;
    this.grid.band.hidden = false;
    style.transform = `translate(${left}px, ${top}px)`;
    style.width = `${right - left}px`;
    style.height = `${bottom - top}px`;
    const pitch = this.grid.tile + GAP;
    const from = Math.max(0, Math.ceil((left - this.grid.tile) / pitch));
    const to = Math.min(this.grid.columns - 1, Math.floor(right / pitch));
    this.grid.selected = new Set(base);
    const firstRow = Math.max(0, Math.ceil((top - this.grid.tile) / pitch));
    const lastRow = Math.min(this.grid.rows - 1, Math.floor(bottom / pitch));
    for (let row = firstRow; row <= lastRow; row++) {
      for (let column = from; column <= to; column++) {
        const index = row * this.grid.columns + column;
        if (index < this.grid.items.length) {
          this.grid.selected.add(this.grid.items[index]);
          this.grid.current = index;
        }
      }
    }
    this.grid.render();
    this.grid.changed();
  }
}
