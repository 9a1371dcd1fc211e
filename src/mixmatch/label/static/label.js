// The tab Label: which pictures, and the one next thing to do.
import { advise } from "./advice.js";
import { get, newId, post } from "./api.js";
import { $, button, differ, h, number, primary, toast } from "./dom.js";
import { BROKEN, CONFLICT, EXAM, GONE, NONE, SKIP, UNLABELED, UNREADABLE } from "./store.js";

const SUGGESTED = 60;

export class LabelView {
  constructor(store, bench, { tab, side }) {
    Object.assign(this, { store, bench, tab, side });
    this.filter = "unlabeled";
    this.reasons = new Map(); // picture -> why it is suggested
    this.exam = [];
    this.later = new Set(); // banners put away
    this.select = h("select", { id: "filter", "aria-label": "Show", onchange: () => this.go(this.select.value) });
    this.listed = differ();
    this.search = h("input", {
      type: "search",
      id: "search",
      placeholder: "File name",
      "aria-label": "Search by file name",
      oninput: () => this.typed(),
    });
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === "Escape") {
        if (event.key === "Escape") this.search.value = "";
        this.list();
        bench.focus();
      }
    });
    this.again = button("", () => this.work(this.filter), { id: "again", hidden: true });
    const size = h("input", {
      type: "range",
      min: "88",
      max: "320",
      step: "12",
      value: bench.grid.size,
      "aria-label": "Size of the pictures",
      oninput: () => {
        localStorage.setItem("mixmatch-size", size.value);
        bench.grid.setSize(Number(size.value));
      },
    });
    this.size = size;
    const turn = (view, name) =>
      button(name, () => (view === "grid" ? bench.toGrid() : bench.toSingle()), {
        "data-view": view,
        "aria-pressed": String(view === "grid"),
      });
    this.switch = h(
      "div",
      { class: "switch", role: "group", "aria-label": "View" },
      turn("grid", "Grid"),
      turn("single", "Single"),
    );
  }

  // What the bench asks of a view.
  source(size) {
    if (this.filter === "exam") return "exam";
    if (this.filter === "next") return "next";
    return size > 1 ? "bulk" : "key";
  }

  get advance() {
    return ["unlabeled", "next", "exam"].includes(this.filter) ? "unlabeled" : "next";
  }

  look(n) {
    const why = this.filter === "next" && this.reasons.get(n);
    return why ? { note: why } : {};
  }

  open() {
    $(".tools").replaceChildren(
      this.select,
      this.search,
      this.again,
      h("span", { class: "grow" }),
      this.size,
      this.switch,
    );
    this.options();
    this.go(this.filter).then(() => matchMedia("(hover: hover)").matches && $("#first-class")?.focus());
  }

  options() {
    const { store } = this;
    const option = (value, text) => h("option", { value }, text);
    const counts = store.counts();
    const { state } = store;
    const signature = JSON.stringify([
      store.classes.map(({ id, name }) => [id, name]),
      Boolean(state.exam.size),
      counts.conflicts > 0,
      this.filter,
    ]);
    if (signature === this.signature) return;
    this.signature = signature;
    this.select.replaceChildren(
      option("next", "Suggested next"),
      state.exam.size ? option("exam", "The exam") : "",
      option("unlabeled", "Unlabeled"),
      option("all", "All pictures"),
      h(
        "optgroup",
        { label: "Labeled" },
        option("labeled", "Any class"),
        option("mine", "By me"),
        option("conflict", "Two answers"),
        ...store.classes.map(({ id, name }) => option(String(id), name)),
      ),
      h(
        "optgroup",
        { label: "Put aside" },
        option(String(SKIP), "Skipped"),
        option(String(NONE), "None of these"),
        option(String(BROKEN), "Not an image"),
        option("unreadable", "Cannot be shown"),
        option("gone", "Files that are gone"),
      ),
    );
    this.select.value = this.filter;
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.list(), 120);
  }

  // Another list. The old one stays, with its name, until the new one is there.
  async go(filter) {
    this.wanted = filter;
    try {
      if (filter === "exam") this.exam = (await get("/api/exam")).n;
      if (filter === "next") await this.suggest();
    } catch (refused) {
      toast(refused.message);
    }
    if (this.wanted !== filter || this.tab.current !== "label") return;
    this.bench.holding = false;
    this.filter = filter;
    this.list({ anew: filter === "exam" || filter === "next" });
  }

  // Another list, and the keys go to it.
  work(filter) {
    this.bench.focus();
    return this.go(filter);
  }

  putAway(id) {
    this.later.add(id);
    this.banner();
    this.bench.focus();
  }

  async suggest() {
    clearTimeout(this.waking);
    this.better = false;
    const { items, ready, why } = await get(`/api/next?k=${SUGGESTED}`);
    this.rule = why;
    const free = items.filter(({ n }) => this.store.value(n) === UNLABELED); // some labels may be on their way
    this.reasons = new Map(free.map(({ n, why }) => [n, why]));
    if (!ready) this.awaitBetter();
  }

  // Better suggestions are offered when they are there, never put in the place of a picture somebody is looking at.
  awaitBetter() {
    this.waking = setTimeout(async () => {
      if (this.filter !== "next" || this.tab.current !== "label") return;
      this.better = await get("/api/next?k=1").then(
        ({ ready }) => ready,
        () => false,
      );
      if (this.better) this.countDone();
      else this.awaitBetter();
    }, 2000);
  }

  // The list is made once and then left alone: what gets a label stays in its place until it is cleared away. A list of
  // work that is begun `anew` begins at the first picture that has no value yet.
  list({ anew = false } = {}) {
    const { store, filter } = this;
    if (this.tab.current !== "label") return;
    const wanted = this.search.value.trim().toLowerCase();
    const value = (n) => store.value(n);
    const flag = (bit) => (n) => store.flags[n] & bit;
    const tests = {
      all: () => true,
      unlabeled: (n) => value(n) === UNLABELED && !(store.flags[n] & EXAM),
      labeled: (n) => value(n) >= 0,
      mine: (n) => value(n) !== UNLABELED && store.mine(n),
      conflict: flag(CONFLICT),
      unreadable: flag(UNREADABLE),
      gone: flag(GONE),
    };
    const test = tests[filter] ?? ((n) => value(n) === Number(filter));
    const hidden = filter === "gone" ? 0 : GONE;
    let items;
    if (filter === "exam") items = this.exam;
    else if (filter === "next") items = [...this.reasons.keys()];
    else items = store.order.filter((n) => !(store.flags[n] & hidden) && test(n));
    if (wanted) items = items.filter((n) => store.name[n].toLowerCase().includes(wanted));
    this.generation = store.generation;
    this.options();
    const current = anew ? (items.find((n) => value(n) === UNLABELED) ?? -1) : null;
    const other = this.listed(filter, wanted); // what was selected in another list may be out of sight in this one
    const selected = other || anew ? { selected: new Set() } : {};
    this.bench.show(this, items, anew ? { current, ...selected } : selected);
    this.update();
  }

  update() {
    if (this.store.generation !== this.generation && !["next", "exam"].includes(this.filter)) return this.list();
    this.options();
    this.counting ??= setTimeout(() => this.countDone(), 200); // over all pictures: not with every key
    this.banner();
  }

  countDone() {
    this.counting = undefined;
    const work = ["unlabeled", "next"].includes(this.filter);
    const done = work ? this.bench.grid.items.reduce((sum, n) => sum + (this.store.value(n) !== UNLABELED), 0) : 0;
    const better = this.filter === "next" && this.better;
    this.again.hidden = !done && !better;
    if (better) this.again.textContent = "Better suggestions are ready";
    else this.again.textContent = `${number(done)} done: ${this.filter === "next" ? "suggest more" : "clear away"}`;
  }

  // The end of the list. Says whether another one is on its way.
  finished() {
    if (this.filter === "next") this.go("next");
    else if (this.filter === "exam") this.go("next");
    else toast("That was the last one in this list.");
    return ["next", "exam"].includes(this.filter);
  }

  // ---------------------------------------------------------------------------------------------- the next thing to do

  banner() {
    const { store, filter, rule } = this;
    const classes = store.classes.length;
    const advice = advise({ state: store.state, counts: store.counts(), classes, filter, rule });
    const shown = advice && !this.later.has(advice.id) ? advice : null;
    const key = JSON.stringify(shown);
    if (key === this.shown && Boolean(shown) === Boolean($(".banners").firstChild)) return;
    this.shown = key;
    const typing = document.activeElement?.id === "first-class" ? document.activeElement.value : null;
    $(".banners").replaceChildren(...(shown ? [this.paintAdvice(shown)] : []));
    if (typing === null) return;
    const field = $("#first-class") ?? this.side.field; // whoever types goes on typing
    field.value = typing;
    field.focus();
  }

  paintAdvice({ id, text, act, later }) {
    const acts = {
      draw: (size) => this.draw(size),
      work: (list) => this.work(list),
      tab: (name) => this.tab.open(name),
    };
    const buttons = act ? [primary(act[0], () => acts[act[1]](act[2]))] : [];
    if (later) buttons.push(button("Later", () => this.putAway(id), { class: "plain" }));
    const doing = id === "classes" ? this.nameField() : h("div", { class: "acts" }, ...buttons);
    return h("div", { class: "banner", id: `say-${id}` }, h("p", {}, text), doing);
  }

  nameField() {
    const field = h("input", {
      type: "text",
      placeholder: this.store.classes.length ? "Second class, e.g. dog" : "First class, e.g. cat",
      "aria-label": "Name of a class",
      id: "first-class",
      maxlength: "80",
      autocomplete: "off",
    });
    const submit = (event) => {
      event.preventDefault();
      this.side.submit(field);
    };
    const add = h("button", { type: "submit", class: "primary" }, "Add");
    return h("form", { class: "acts", onsubmit: submit }, field, add);
  }

  async draw(more) {
    try {
      await this.bench.outbox.flush();
      this.store.absorb(
        await post("/api/exam", { id: newId(), more, since: this.store.seq, listing: this.store.listing }),
      );
      await this.go("exam");
      this.bench.focus();
    } catch (refused) {
      toast(refused.message);
    }
  }

  empty() {
    const { store, filter } = this;
    if (!store.state.total) {
      const text = `There is no picture in ${store.state.path} or in its folders yet: JPEG, PNG, WebP and similar files are looked for. Put some there, then look again.`;
      return [
        h("h2", {}, store.state.scanning ? "Looking for pictures …" : "No pictures here"),
        h("p", {}, text),
        primary("Look again", () => this.tab.rescan()),
      ];
    }
    if (this.search.value.trim())
      return [
        h("h2", {}, "No such name"),
        h("p", {}, `No picture of this list has “${this.search.value.trim()}” in its name.`),
        primary("Show the whole list", () => ((this.search.value = ""), this.list())),
      ];
    if (filter === "unlabeled" || filter === "next")
      return [
        h("h2", {}, "Everything is labeled"),
        h("p", {}, "Every picture has a label. What remains is to find wrong ones."),
        primary("Check the labels", () => this.tab.open("check")),
      ];
    return [
      h("h2", {}, "Nothing here"),
      h("p", {}, "No picture is in this list."),
      primary("Show the unlabeled ones", () => this.go("unlabeled")),
    ];
  }
}
