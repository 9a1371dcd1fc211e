// The workbench: pictures, a selection, and keys that label it. The tabs Label, Guesses and Check put different lists on it.
import { $, button, count, differ, h, number, say, setText } from "./dom.js";
import { Grid } from "./grid.js";
import { Single } from "./single.js";
import { BROKEN, GONE, NONE, SKIP, UNLABELED, UNREADABLE } from "./store.js";

const MARK_KEYS = { 0: NONE, x: BROKEN, z: SKIP };
const NOT_FOR_PICTURES = ["Tab", "Shift", "Control", "Alt", "Meta"];

export class Bench {
  constructor(store, outbox) {
    Object.assign(this, { store, outbox });
    this.view = null;
    this.done = []; // what this tab did, for an undo that shows at once; the server has the whole story
    this.undone = [];
    this.alone = false; // one picture fills the bench
    this.holding = false; // a list has ended and the next one is on its way
    this.keysOn = localStorage.getItem("mixmatch-keys") !== "off";
    this.grid = new Grid($("#grid"), {
      look: (n, index) => this.look(n, index),
      enlarge: (index) => this.toSingle(index),
      enter: (index) => this.enter(index),
      changed: () => this.selection(),
      unreadable: (n) => store.unreadable(n),
      size: Number(localStorage.getItem("mixmatch-size")) || 148,
    });
    this.single = new Single($("#single"), store, { turn: (by) => this.turn(by), close: () => this.toGrid() });
    this.otherFoot = differ();
    this.file = h("span", { class: "file" });
    store.on(() => this.refresh());
    for (const box of [$("#grid"), $("#single")]) box.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("keydown", (event) => this.anywhere(event));
  }

  look(n, index) {
    const { store } = this;
    const value = store.value(n);
    const flags = store.flags[n];
    const extra = this.view?.look?.(n, index) ?? {};
    const faded = value === SKIP || value === BROKEN || Boolean(flags & (GONE | UNREADABLE));
    return {
      src: store.thumb(n),
      name: store.name[n],
      tag: store.text(value),
      color: store.color(value),
      said: store.text(value) || "no label",
      faded,
      ...extra,
    };
  }

  // Another list on the bench.
  show(view, items, options) {
    const other = this.view !== view;
    this.view = view;
    this.grid.toggles = Boolean(view.toggles);
    if (other) {
      this.holding = false;
      this.grid.selected = new Set();
      this.alone = false;
    }
    this.grid.show(items, other ? { current: -1, ...options } : options);
    const empty = items.length ? null : view.empty();
    $("#empty").hidden = Boolean(items.length);
    $("#empty").replaceChildren(...(empty ?? []));
    if (!items.length) this.alone = false;
    this.layout();
  }

  layout() {
    const has = this.grid.items.length > 0;
    $("#grid").hidden = this.alone || !has;
    $("#single").hidden = !this.alone || !has;
    $(".banners").hidden = this.alone;
    for (const button of document.querySelectorAll(".switch [data-view]"))
      button.setAttribute("aria-pressed", String((button.dataset.view === "single") === this.alone));
    if (this.alone) this.paintSingle();
    else this.grid.measure(true);
    this.selection();
  }

  focus() {
    (this.alone ? $("#single") : $("#grid")).focus({ preventScroll: true });
  }

  toSingle(index = this.grid.current) {
    if (!this.grid.items.length) return;
    this.grid.go(index);
    this.alone = true;
    this.layout();
    this.focus();
  }

  toGrid() {
    this.alone = false;
    this.layout();
    this.grid.render();
    this.grid.reveal();
    this.grid.render();
    this.focus();
  }

  enter(index) {
    if (this.view.enter && !this.alone) this.view.enter();
    else this.toSingle(index);
  }

  turn(by) {
    this.grid.go(this.grid.current + by);
    this.paintSingle();
  }

  paintSingle() {
    const { items, current } = this.grid;
    if (!items.length) return;
    this.single.show(items[current], {
      position: number(current + 1),
      total: items.length,
      note: this.view.look?.(items[current], current)?.note,
      following: items[current + 1],
    });
  }

  refresh() {
    if (!this.view) return;
    this.grid.refresh();
    if (this.alone) this.paintSingle();
    this.selection();
  }

  // Pictures that did not come may come now.
  again() {
    this.grid.again();
    this.single.again();
  }

  // What a key would label now: said in words, since it differs between the grid and a single picture.
  targets() {
    if (!this.grid.items.length || this.holding) return [];
    if (this.alone || this.view.toggles) return [this.grid.n];
    return this.grid.chosen();
  }

  selection() {
    if (!this.view) return;
    const { grid, store } = this;
    const size = this.alone || this.view.toggles ? Math.min(1, grid.items.length) : grid.selected.size;
    const which = this.alone
      ? "this picture"
      : this.view.toggles
        ? "the framed picture"
        : size === 1
          ? "1 selected picture"
          : `${number(size)} selected pictures`;
    const n = grid.n;
    const note = grid.items.length ? this.view.look?.(n, grid.current)?.note : "";
    const keys = this.keysOn ? (size ? `A key labels ${which}` : "Nothing selected") : "Keys are off";
    if (this.otherFoot(keys, note, this.alone, size, grid.items.length)) this.paintFoot(keys, note, size);
    setText(this.file, store.name[n] ?? "");
    this.view.selected?.();
  }

  paintFoot(keys, note, size) {
    const { grid } = this;
    $("#foot").classList.toggle("many", size > 1);
    $("#foot").replaceChildren(
      h("b", { id: "which" }, keys),
      this.file,
      note && !this.alone ? h("span", { id: "why", title: note }, note) : "",
      size > 1 ? button("Select none", () => grid.none(), { class: "plain small" }) : "",
      h("span", { class: "grow" }),
      h("span", {}, count(grid.items.length, "picture"), " shown"),
      button(["Keys ", h("kbd", {}, "?")], () => this.help(), { class: "plain small hint" }),
    );
  }

  // -------------------------------------------------------------------------------------------------------- labeling

  label(value, targets = this.targets(), source = null) {
    const { store, view } = this;
    const n = targets.filter((each) => !(store.flags[each] & GONE) && store.value(each) !== value);
    const what = value === UNLABELED ? "label removed" : store.text(value);
    if (n.length) {
      this.done.push({ n, before: n.map((each) => store.value(each)), value });
      this.undone = [];
      this.outbox.add({ kind: "label", n, value, source: source ?? view.source(n.length) });
    }
    view.labeled?.(n, value);
    if (targets.length) {
      say(`${n.length === 1 ? store.name[n[0]] : count(targets.length, "picture")}: ${what}. Undo with Control Z.`);
      if (value !== UNLABELED && view.advance !== "stay") this.advance(targets);
    }
    this.store.tell(); // everything is painted once, before the next frame
    this.flash?.(value);
  }

  // On to the next picture, in lists of work to the next one without a value.
  advance(targets) {
    const { grid, store, view } = this;
    let index = grid.current;
    if (targets.length > 1) {
      const labeled = new Set(targets);
      for (index = grid.items.length - 1; index > 0 && !labeled.has(grid.items[index]); index--);
    }
    let next = index + 1;
    if (view.advance === "unlabeled") {
      const { items } = grid;
      const free = (n) => store.value(n) === UNLABELED;
      while (next < items.length && !free(items[next])) next++;
      if (next === items.length) next = items.findIndex(free); // what was passed over, from the start
      if (next < 0) next = items.length;
    }
    if (next >= grid.items.length) {
      this.holding = Boolean(view.finished?.()); // until the next list is there keys label nothing
      if (targets.length === 1) grid.go(Math.min(index, grid.items.length - 1));
      return;
    }
    grid.go(next);
  }

  // The last change of this tab is known, so its reverse shows at once; of older ones the server says what it was.
  reverse(kind) {
    const [from, to] = kind === "undo" ? [this.done, this.undone] : [this.undone, this.done];
    const known = from.pop();
    if (known) to.push(known);
    const values = known && (kind === "undo" ? known.before : known.n.map(() => known.value));
    this.outbox.add({ kind, n: known?.n ?? [], values: values ?? [] });
    if (!known) return;
    const index = this.grid.items.indexOf(known.n[0]);
    if (index >= 0 && !this.view.toggles) {
      this.grid.go(index);
      if (known.n.length > 1) {
        const has = new Set(known.n);
        this.grid.selected = new Set(this.grid.items.filter((n) => has.has(n)));
      }
    }
    this.refresh();
  }

  // ------------------------------------------------------------------------------------------------------------ keys

  // Keys that label work only where the pictures have the focus, and can be switched off. One that is held down moves on
  // and on, and does anything else once.
  key(event) {
    if (event.defaultPrevented || event.isComposing || event.altKey) return;
    if (event.target.closest("button, a, input, select")) return;
    const took = this.alone ? this.singleKey(event) : this.grid.key(event);
    if (took || this.valueKey(event)) event.preventDefault();
  }

  singleKey({ key, ctrlKey, metaKey, repeat }) {
    if (ctrlKey || metaKey) return false;
    const steps = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, " ": 1 };
    if (key in steps) this.turn(steps[key]);
    else if (key === "Home") this.turn(-this.grid.current);
    else if (key === "End") this.turn(this.grid.items.length);
    else if (key === "Escape" || key === "Enter") repeat || this.toGrid();
    else return false;
    return true;
  }

  valueKey({ key, ctrlKey, metaKey, repeat }) {
    if (ctrlKey || metaKey || repeat) return false;
    if (key === "Delete" || key === "Backspace") return (this.label(UNLABELED), true);
    if (!this.keysOn || key.length !== 1) return false;
    const lower = key.toLowerCase();
    const found =
      this.store.classes.find((each) => each.key === key) ?? this.store.classes.find((each) => each.key === lower);
    if (found) this.label(found.id);
    else if (lower in MARK_KEYS) this.label(MARK_KEYS[lower]);
    else if (this.view.keys?.[lower]) this.view.keys[lower]();
    else if (lower === "g") this.alone ? this.toGrid() : this.toSingle();
    else return false;
    return true;
  }

  anywhere(event) {
    const typing = event.target.closest?.("input, select, textarea") || $("dialog[open]");
    const control = event.ctrlKey || event.metaKey;
    if (typing || !this.view || event.isComposing || event.defaultPrevented) return;
    if (control && event.key.toLowerCase() === "z") this.reverse(event.shiftKey ? "redo" : "undo");
    else if (control && event.key.toLowerCase() === "y") this.reverse("redo");
    else if (event.key === "?" && !control) this.help();
    else if (event.key === "/" && !control && $("#search")) $("#search").focus();
    else if (event.target === document.body && !$("#bench").hidden && !NOT_FOR_PICTURES.includes(event.key)) {
      this.focus(); // a click beside everything took the focus away: the pictures take it back
      return void this.key(event);
    } else return;
    event.preventDefault();
  }
}
