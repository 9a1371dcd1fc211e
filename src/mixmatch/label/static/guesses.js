// The tab Guesses: what the model says of pictures without a label, class by class, the surest first. Before a group can be
// confirmed its least sure pictures are shown, since a guess that is shown is easily believed.
import { get, newId, post } from "./api.js";
import { $, button, count, h, number, percent, primary, toast } from "./dom.js";
import { UNLABELED } from "./store.js";

const LEAST_SEEN = 6;
const NARROW = matchMedia("(max-width: 52rem)"); // small tiles have room for the number alone

export class GuessesView {
  constructor(store, bench, { tab, conflicts }) {
    Object.assign(this, { store, bench, tab, conflicts });
    this.toggles = true;
    this.advance = "stay";
    this.groups = [];
    this.chosen = null; // the class's id
    this.least = 0.9;
    this.batch = 60;
    this.left = new Set(); // taken out: not selected again by a new list of the same run
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Guessed class" });
    const pick = (name, label, options, value) =>
      h(
        "select",
        { "aria-label": label, onchange: (event) => ((this[name] = Number(event.target.value)), this.load()) },
        ...options.map(([each, text]) => h("option", { value: each, selected: each === value }, text)),
      );
    this.sureness = pick(
      "least",
      "How sure",
      [
        [0.99, "99 % sure or more"],
        [0.95, "95 % sure or more"],
        [0.9, "90 % sure or more"],
        [0.7, "70 % sure or more"],
        [0, "all guesses"],
      ],
      0.9,
    );
    this.amount = pick(
      "batch",
      "How many at once",
      [
        [12, "12 at once"],
        [30, "30 at once"],
        [60, "60 at once"],
        [200, "200 at once"],
        [500, "500 at once"],
      ],
      60,
    );
    this.strip = h("div", { class: "strip" });
    this.confirm = primary("", () => this.enter(), { id: "confirm" });
    this.words = h("p", {});
    this.panel = h(
      "div",
      { class: "banner confirm" },
      this.words,
      this.strip,
      h("div", { class: "acts" }, this.confirm),
    );
    this.keys = { c: () => this.enter() };
  }

  source() {
    return "fix";
  }

  look(n) {
    const { store } = this;
    const value = store.value(n);
    const sure = percent(store.sure[n] / 1000);
    return value === UNLABELED
      ? {
          tag: NARROW.matches ? sure : `${store.text(this.chosen)}? ${sure}`,
          color: store.color(this.chosen),
          said: `guessed ${store.text(this.chosen)}, ${sure}`,
        }
      : {};
  }

  async open() {
    $(".tools").replaceChildren(this.chips, h("span", { class: "grow" }), this.sureness, this.amount);
    await this.load();
  }

  async load() {
    const asked = (this.asked = {});
    try {
      const { run, groups } = await get(`/api/groups?least=${this.least}`);
      if (asked !== this.asked) return; // the answer to an older question
      if (run !== this.run) this.left.clear();
      Object.assign(this, { run, groups });
    } catch (refused) {
      toast(refused.message);
    }
    if (!this.groups.some((group) => group.id === this.chosen)) this.chosen = this.groups[0]?.id ?? null;
    this.list();
  }

  list() {
    if (this.tab.current !== "guesses") return;
    const { store, bench } = this;
    this.chips.replaceChildren(...this.groups.map((group) => this.chip(group)));
    const group = this.groups.find((each) => each.id === this.chosen);
    this.generation = store.generation;
    const items = (group?.n ?? []).filter((n) => store.value(n) === UNLABELED).slice(0, this.batch);
    const sure = new Map(group?.n.map((n, i) => [n, group.sure[i]]));
    for (const n of items) store.sure[n] = sure.get(n);
    bench.show(this, items, { selected: new Set(items.filter((n) => !this.left.has(n))) });
    $(".banners").replaceChildren(items.length ? this.panel : "");
  }

  chip(group) {
    const choose = () => {
      this.chosen = group.id;
      this.list();
    };
    const dot = h("span", { class: "dot", "data-color": this.store.color(group.id) });
    const content = [dot, group.class, h("span", { class: "n" }, number(group.total))];
    return button(content, choose, { "aria-pressed": String(group.id === this.chosen) });
  }

  doubt(n) {
    const { store } = this;
    const sure = percent(store.sure[n] / 1000);
    const content = [h("img", { src: store.thumb(n), alt: "" }), h("span", { class: "small" }, sure)];
    return button(content, () => this.out(n), {
      title: "Take it out",
      "aria-label": `${store.name[n]}, ${sure}: take it out`,
    });
  }

  update() {
    if (this.store.generation !== this.generation) this.load();
  }

  // Those about to be confirmed, and the least sure among them.
  named() {
    return this.bench.grid.chosen().filter((n) => this.store.value(n) === UNLABELED);
  }

  doubtful(named) {
    return [...named].sort((a, b) => this.store.sure[a] - this.store.sure[b]).slice(0, LEAST_SEEN);
  }

  selected() {
    if (this.chosen === null) return;
    const { store } = this;
    const { items, selected } = this.bench.grid;
    for (const n of items) selected.has(n) ? this.left.delete(n) : this.left.add(n);
    const named = this.named();
    const doubtful = this.doubtful(named);
    this.words.textContent = named.length
      ? `Look at the least sure of these ${number(named.length)} first. A click takes one out; a class or its key corrects the framed one.`
      : "Nothing is selected. A click puts a picture back.";
    this.confirm.replaceChildren(
      `Confirm ${number(named.length)} as ${store.text(this.chosen)} `,
      h("kbd", {}, "Enter"),
    );
    this.confirm.disabled = !named.length;
    if (doubtful.join() === this.seen?.join()) return;
    this.seen = doubtful;
    this.strip.replaceChildren(...doubtful.map((n) => this.doubt(n)));
  }

  out(n) {
    this.bench.grid.selected.delete(n);
    this.bench.grid.refresh();
    this.bench.selection();
  }

  labeled(n) {
    for (const each of n) this.bench.grid.selected.delete(each);
  }

  // An undo may have brought pictures back.
  reversed() {
    this.load();
  }

  async enter() {
    const n = this.named();
    if (!n.length || this.busy) return;
    this.busy = true;
    const { store, bench } = this;
    try {
      await bench.outbox.flush();
      const body = await post("/api/confirm", {
        id: newId(),
        run: this.run,
        class: store.text(this.chosen),
        n,
        seen: this.doubtful(n),
        since: store.seq,
        listing: store.listing,
      });
      store.absorb(body);
      bench.done.push({ n, before: n.map(() => UNLABELED), value: this.chosen });
      bench.undone = [];
      if (body.conflicts?.length) this.conflicts(body.conflicts);
      toast(`${count(n.length, "picture")} confirmed as ${store.text(this.chosen)}`, {
        name: "Undo",
        run: () => bench.reverse("undo"),
      });
      await this.load();
      bench.focus();
    } catch (refused) {
      toast(refused.message);
    }
    this.busy = false;
  }

  empty() {
    if (!this.run)
      return [
        h("h2", {}, "No guesses yet"),
        h(
          "p",
          {},
          "A trained model guesses the label of every picture without one. Train the first: it takes a few labels per class.",
        ),
        primary("Train", () => this.tab.open("train")),
      ];
    const text = this.least
      ? `Of no picture without a label is ${this.run} this sure.`
      : "Every picture has a label.";
    return [
      h("h2", {}, "Nothing to confirm"),
      h("p", {}, `${text} Label what it is unsure of, and train again.`),
      primary("Suggest pictures", () => this.tab.open("label", "next")),
    ];
  }
}
