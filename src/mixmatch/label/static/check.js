// The tab Check: labels that may be wrong. Suspects are found without using the picture's own label; near copies with
// different labels contradict each other; and where two people disagree both answers are shown.
import { get } from "./api.js";
import { decide } from "./conflicts.js";
import { $, button, differ, h, number, primary, setText, toast } from "./dom.js";
import { CONFLICT } from "./store.js";

export class CheckView {
  constructor(store, bench, { tab }) {
    Object.assign(this, { store, bench, tab });
    this.advance = "next";
    this.kind = "suspects";
    this.found = { items: [], copies: [], why: "", ready: true, current: true };
    this.notes = new Map();
    this.instead = new Map();
    this.kept = new Set(); // labels that were looked at and found right, in this browser
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "What may be wrong" });
    this.words = h("p", {});
    this.acts = h("div", { class: "acts" });
    this.panel = h("div", { class: "banner" }, this.words, this.acts);
    this.again = button("Labels were checked again: show", () => this.load().then(() => bench.focus()));
    this.keys = { c: () => this.keep() };
    this.other = differ();
  }

  source() {
    return "fix";
  }

  look(n) {
    if (this.kind === "conflicts" && !(this.store.flags[n] & CONFLICT)) return { note: "decided", faded: true };
    return { note: this.notes.get(n), faded: this.kept.has(this.said(n)) };
  }

  // A picture with its label: another label may be wrong again.
  said(n) {
    return `${this.store.text(this.store.value(n))}: ${this.store.name[n]}`;
  }

  get place() {
    return `mixmatch-kept:${this.store.state.path}`;
  }

  async open() {
    $(".tools").replaceChildren(this.chips, this.again);
    this.kept = new Set(JSON.parse(localStorage.getItem(this.place) ?? "[]"));
    await this.load();
  }

  async load() {
    clearTimeout(this.waking);
    this.again.hidden = true;
    try {
      this.found = await get("/api/suspects");
      this.found.items = this.found.items.filter(({ n }) => !this.kept.has(this.said(n)));
    } catch (refused) {
      toast(refused.message);
    }
    if (!this.found.current) this.awaitNewer();
    this.list();
  }

  // What is found of the labels as they are now is offered, never put in the place of a picture somebody is looking at.
  awaitNewer() {
    this.waking = setTimeout(async () => {
      if (this.tab.current !== "check") return;
      if (!this.bench.grid.items.length) return this.load();
      const { at } = await get("/api/suspects").catch(() => this.found);
      this.again.hidden = at === this.found.at;
      if (this.again.hidden) this.awaitNewer();
    }, 2000);
  }

  conflicting() {
    return this.store.order.filter((n) => this.store.flags[n] & CONFLICT);
  }

  list() {
    if (this.tab.current !== "check") return;
    const { items, copies } = this.found;
    const conflicts = this.conflicting();
    const kinds = [
      ["suspects", "Likely wrong", items.length],
      ["copies", "Copies that differ", copies.length],
      ["conflicts", "Two answers", conflicts.length],
    ];
    this.chips.replaceChildren(
      ...kinds.map(([kind, name, n]) =>
        button([name, h("span", { class: "n" }, number(n))], () => this.choose(kind), {
          "aria-pressed": String(kind === this.kind),
        }),
      ),
    );
    this.notes = new Map();
    this.instead = new Map();
    let shown = conflicts;
    if (this.kind === "suspects") {
      shown = items.map((item) => item.n);
      for (const { n, instead, why } of items) {
        this.notes.set(n, `looks like ${instead}: ${why}`);
        this.instead.set(n, instead);
      }
    } else if (this.kind === "copies") {
      shown = copies.flatMap((copy) => copy.n);
      copies.forEach((copy, i) =>
        copy.n.forEach((n) => this.notes.set(n, `pair ${i + 1}: ${copy.why ?? copy.labels.join(" and ")}`)),
      );
    } else for (const n of shown) this.notes.set(n, "two answers");
    this.generation = this.store.generation;
    this.bench.show(this, shown);
    this.selected();
  }

  update() {
    if (this.store.generation !== this.generation) this.list();
    else if (this.chips.lastChild) setText($(".n", this.chips.lastChild), number(this.store.state.counts.conflicts));
  }

  selected() {
    const { grid } = this.bench;
    const { store } = this;
    if (this.tab.current !== "check") return; // the next tab's pictures are on their way
    if (!grid.items.length) return void $(".banners").replaceChildren();
    if (!this.panel.isConnected) $(".banners").replaceChildren(this.panel);
    const n = grid.n;
    const said = store.text(store.value(n));
    const instead = this.instead.get(n);
    const other = store.classes.find((each) => each.name === instead);
    const open = Boolean(store.flags[n] & CONFLICT);
    if (!this.other(this.kind, n, said, this.notes.get(n), other, open)) return;
    if (this.kind === "conflicts" && !open) {
      this.words.textContent = `Decided: ${said || "no label"}.`;
      this.acts.replaceChildren();
      return;
    }
    if (this.kind === "conflicts") {
      this.words.textContent =
        "Two people, or two tabs, gave this picture different labels. The first to be saved counts until somebody decides.";
      this.acts.replaceChildren(primary("Show both answers", () => decide(store, this.bench, n)));
      return;
    }
    this.words.replaceChildren(`${said ? `Labeled ${said}` : "No label"}; ${this.notes.get(n) ?? ""}.`);
    if (this.kind === "suspects") this.words.append(h("span", { class: "how soft small" }, this.found.why));
    this.acts.replaceChildren(
      other && instead !== said
        ? primary([`Change to ${instead} `, h("kbd", {}, other.key ?? "")], () => this.change(n, other.id))
        : "",
      said ? button([`Keep ${said} `, h("kbd", {}, "c")], () => this.keep()) : "",
    );
  }

  choose(kind) {
    this.kind = kind;
    this.list();
    this.bench.focus();
  }

  change(n, value) {
    this.bench.label(value, [n]);
    this.bench.focus();
  }

  keep() {
    this.kept.add(this.said(this.bench.grid.n));
    try {
      localStorage.setItem(this.place, JSON.stringify([...this.kept]));
    } catch {
      // no room: kept until the page is left
    }
    this.bench.grid.go(this.bench.grid.current + 1);
    this.bench.refresh();
    this.bench.focus();
  }

  finished() {
    toast("That was the last one.");
    return false;
  }

  empty() {
    if (!this.found.ready)
      return [
        h("h2", {}, "Checking the labels …"),
        h("p", {}, "Every label is compared with its neighbors. This takes a moment; you can continue labeling."),
      ];
    if (this.kind === "conflicts")
      return [
        h("h2", {}, "Nobody disagrees"),
        h("p", {}, "When two people give a picture different labels, both answers are shown here."),
        primary("Continue labeling", () => this.tab.open("label")),
      ];
    if (this.kind === "copies")
      return [
        h("h2", {}, "No copies that differ"),
        h("p", {}, "Near copies of a picture all have the same label, or none."),
        primary("Continue labeling", () => this.tab.open("label")),
      ];
    return [
      h("h2", {}, this.found.at === null ? "Nothing was compared" : "No label stands out"),
      h("p", {}, this.found.why || "No label looks wrong."),
      primary("Continue labeling", () => this.tab.open("label")),
    ];
  }
}
