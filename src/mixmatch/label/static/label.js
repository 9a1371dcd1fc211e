// The tab Label: which pictures, and the one next thing to do.
import { get, newId, post } from "./api.js";
import { $, count, h, number, toast } from "./dom.js";
import { BROKEN, CONFLICT, EXAM, GONE, NONE, SKIP, UNLABELED, UNREADABLE } from "./store.js";

const SUGGESTED = 60;
const EXAM_SIZE = 50;

export class LabelView {
  constructor(store, bench, { tab, side }) {
    Object.assign(this, { store, bench, tab, side });
    this.filter = "unlabeled";
    this.reasons = new Map(); // picture -> why it is suggested
    this.exam = [];
    this.later = new Set(); // banners put away
    this.select = h("select", { id: "filter", "aria-label": "Show", onchange: () => this.go(this.select.value) });
    this.search = h("input", { type: "search", id: "search", placeholder: "File name", "aria-label": "Search by file name", oninput: () => this.typed() });
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === "Escape") {
        if (event.key === "Escape") this.search.value = "";
        this.list();
        bench.focus();
      }
    });
    this.again = h("button", { type: "button", id: "again", onclick: () => (this.go(this.filter), bench.focus()) });
    const size = h("input", { type: "range", min: "88", max: "320", step: "12", value: bench.grid.size, "aria-label": "Size of the pictures", oninput: () => {
      localStorage.setItem("mixmatch-size", size.value);
      bench.grid.setSize(Number(size.value));
    } });
    this.size = size;
    const turn = (view, name) => h("button", { type: "button", "data-view": view, "aria-pressed": String(view === "grid"), onclick: () => (view === "grid" ? bench.toGrid() : bench.toSingle()) }, name);
    this.switch = h("div", { class: "switch", role: "group", "aria-label": "View" }, turn("grid", "Grid"), turn("single", "Single"));
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
    $(".tools").replaceChildren(this.select, this.search, this.again, h("span", { class: "grow" }), this.size, this.switch);
    this.options();
    this.go(this.filter).then(() => matchMedia("(hover: hover)").matches && $("#first-class")?.focus());
  }

  options() {
    const { store } = this;
    const option = (value, text) => h("option", { value }, text);
    const counts = store.counts();
    const { state } = store;
    const signature = JSON.stringify([store.classes.map(({ id, name }) => [id, name]), Boolean(state.exam.size), counts.conflicts > 0, this.filter]);
    if (signature === this.signature) return;
    this.signature = signature;
    this.select.replaceChildren(
      option("next", "Suggested next"),
      state.exam.size ? option("exam", "The exam") : "",
      option("unlabeled", "Unlabeled"),
      option("all", "All pictures"),
      h("optgroup", { label: "Labeled" }, option("labeled", "Any class"), option("mine", "By me"), option("conflict", "Two answers"), ...store.classes.map(({ id, name }) => option(String(id), name))),
      h("optgroup", { label: "Put aside" }, option(String(SKIP), "Skipped"), option(String(NONE), "None of these"), option(String(BROKEN), "Not an image"), option("unreadable", "Cannot be shown"), option("gone", "Files that are gone")),
    );
    this.select.value = this.filter;
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.list(), 120);
  }

  async go(filter) {
    this.filter = filter;
    this.options();
    this.select.value = filter;
    try {
      if (filter === "exam") this.exam = (await get("/api/exam")).n;
      if (filter === "next") await this.suggest();
    } catch (refused) {
      toast(refused.message);
    }
    if (this.filter === filter) this.list();
  }

  async suggest() {
    clearTimeout(this.waking);
    const { items, ready, why } = await get(`/api/next?k=${SUGGESTED}`);
    this.rule = why;
    this.reasons = new Map(items.map((item) => [item.n, item.why]));
    if (!ready) {
      this.waking = setTimeout(() => {
        const touched = [...this.reasons.keys()].some((n) => this.store.value(n) !== UNLABELED);
        if (this.filter === "next" && this.tab.current === "label" && !touched) this.go("next");
      }, 2000);
    }
  }

  // The list is made once and then left alone: what gets a label stays in its place until it is cleared away.
  list() {
    const { store, filter } = this;
    const wanted = this.search.value.trim().toLowerCase();
    const value = (n) => store.value(n);
    const flag = (bit) => (n) => store.flags[n] & bit;
    const tests = {
      all: () => true, unlabeled: (n) => value(n) === UNLABELED && !(store.flags[n] & EXAM), labeled: (n) => value(n) >= 0,
      mine: (n) => value(n) !== UNLABELED && store.mine(n), conflict: flag(CONFLICT), unreadable: flag(UNREADABLE), gone: flag(GONE),
    };
    const test = tests[filter] ?? ((n) => value(n) === Number(filter));
    const hidden = filter === "gone" ? 0 : GONE;
    let items;
    if (filter === "exam") items = this.exam;
    else if (filter === "next") items = [...this.reasons.keys()];
    else items = store.order.filter((n) => !(store.flags[n] & hidden) && test(n));
    if (wanted) items = items.filter((n) => store.name[n].toLowerCase().includes(wanted));
    this.generation = store.generation;
    this.bench.show(this, items);
    if (filter === "exam" || filter === "next") this.first();
    this.update();
  }

  // In a list of work: the first picture that has no value yet.
  first() {
    const { grid } = this.bench;
    const index = grid.items.findIndex((n) => this.store.value(n) === UNLABELED);
    if (index > 0 && this.store.value(grid.n) !== UNLABELED) grid.go(index);
  }

  update() {
    if (this.store.generation !== this.generation && !["next", "exam"].includes(this.filter)) return this.list();
    this.options();
    const { grid } = this.bench;
    const cleared = ["unlabeled", "next"].includes(this.filter) ? grid.items.reduce((sum, n) => sum + (this.store.value(n) !== UNLABELED), 0) : 0;
    this.again.hidden = !cleared;
    this.again.textContent = this.filter === "next" ? `${number(cleared)} done: suggest more` : `${number(cleared)} done: clear away`;
    this.banner();
  }

  finished() {
    if (this.filter === "next") this.go("next");
    else if (this.filter === "exam") this.go(this.store.counts().exam < this.store.state.exam.size ? "exam" : "next");
    else toast("That was the last one in this list.");
  }

  // ---------------------------------------------------------------------------------------------- the next thing to do

  banner() {
    const { store, filter } = this;
    const { state } = store;
    const counts = store.counts();
    const exam = state.exam;
    const left = exam.size - counts.exam - (exam.skipped ?? 0);
    const key = [store.classes.length < 2 ? store.classes.length : 2, exam.size > 0, left > 0, filter, counts.labeled - counts.exam > 11, Boolean(state.guesses), this.rule, state.train.run, filter === "exam" && left, this.later.size].join();
    if (key === this.shown && $(".banners").firstChild) return;
    this.shown = key;
    const banner = this.next(counts, left);
    const typing = document.activeElement?.id === "first-class" ? document.activeElement.value : null;
    $(".banners").replaceChildren(banner ?? "");
    if (typing === null) return;
    const field = $("#first-class") ?? this.side.field; // whoever types goes on typing
    field.value = typing;
    field.focus();
  }

  next(counts, left) {
    const { store, filter } = this;
    const { exam, total, train, guesses } = store.state;
    const act = (name, run, primary = true) => h("button", { type: "button", class: primary ? "primary" : "", onclick: run }, name);
    const say = (id, text, ...acts) =>
      this.later.has(id) ? null : h("div", { class: "banner", id: `say-${id}` }, h("p", {}, text), h("div", { class: "acts" }, ...acts, id === "exam-here" || id === "why" ? "" : h("button", { type: "button", class: "plain", onclick: () => (this.later.add(id), this.banner()) }, "Later")));
    if (!total) return null;
    if (store.classes.length < 2) return this.nameClasses();
    if (!exam.size && !exam.test_folder) {
      const size = Math.min(EXAM_SIZE, Math.max(5, Math.round(counts.unlabeled / 4)));
      const text = `Start with an exam: ${size} pictures drawn at random, kept apart, that you label without any help. Only they can say how good a model is on the whole folder. About ${Math.max(1, Math.round(size / 25))} min.`;
      return say("exam", text, act(`Draw ${size} pictures`, () => this.draw(size)));
    }
    if (filter === "exam") {
      const text = left > 0 ? `The exam: ${count(left, "picture")} to go. They are drawn at random and no guess is shown, so that the error is fair. Skip what you cannot tell.` : "The exam is complete. Now label the pictures a model learns from.";
      return say("exam-here", text, left > 0 ? act("Draw 50 more", () => this.draw(50), false) : act("Suggest pictures", () => (this.go("next"), this.bench.focus())));
    }
    if (left > 0 && exam.size) return say("exam-left", `The exam still lacks ${count(left, "picture")}. Until it is complete the error of a model is less certain.`, act("Go on with the exam", () => (this.go("exam"), this.bench.focus())));
    const learned = counts.labeled - counts.exam;
    if (filter === "next" && this.rule) return say("why", this.rule);
    if (learned < 12 || !train.run) {
      if (learned >= 12) return say("train", `${count(learned, "label")} to learn from: enough for a first model. It trains in the background while you go on.`, act("Train", () => this.tab.open("train")));
      return say("next", "Next: label the pictures a model learns most from.", act("Suggest pictures", () => (this.go("next"), this.bench.focus())));
    }
    if (guesses && counts.unlabeled) return say(`guesses-${guesses.run}`, `${guesses.run} has guessed ${count(guesses.count, "picture")}. Confirm what it is sure of.`, act("Look at the guesses", () => this.tab.open("guesses")));
    return null;
  }

  nameClasses() {
    const found = this.store.classes.length;
    const field = h("input", { type: "text", placeholder: found ? "Second class, e.g. dog" : "First class, e.g. cat", "aria-label": "Name of a class", id: "first-class", maxlength: "80", autocomplete: "off" });
    const form = h("form", { class: "acts", onsubmit: async (event) => {
      event.preventDefault();
      await this.side.submit(field);
    } }, field, h("button", { type: "submit", class: "primary" }, "Add"));
    const text = found ? "And the second one. Each class gets a key: press it, and the selected pictures have that label." : "What do your pictures show? Name the first class.";
    return h("div", { class: "banner" }, h("p", {}, text), form);
  }

  async draw(more) {
    try {
      await this.bench.outbox.flush();
      this.store.absorb(await post("/api/exam", { id: newId(), more, since: this.store.seq, listing: this.store.listing }));
      await this.go("exam");
      this.bench.focus();
    } catch (refused) {
      toast(refused.message);
    }
  }

  empty() {
    const { store, filter } = this;
    const act = (name, run) => h("button", { type: "button", class: "primary", onclick: run }, name);
    if (!store.state.total) {
      const text = `There is no picture in ${store.state.path} or in its folders yet: JPEG, PNG, WebP and their kin are looked for. Put some there, then look again.`;
      return [h("h2", {}, store.state.scanning ? "Looking for pictures …" : "No pictures here"), h("p", {}, text), act("Look again", () => post("/api/rescan", {}).then((body) => store.absorb(body)))];
    }
    if (this.search.value.trim()) return [h("h2", {}, "No such name"), h("p", {}, `No picture of this list has “${this.search.value.trim()}” in its name.`), act("Show the whole list", () => ((this.search.value = ""), this.list()))];
    if (filter === "unlabeled" || filter === "next") return [h("h2", {}, "Everything is labeled"), h("p", {}, "No picture without a label is left. Wrong labels are what remains to find."), act("Check the labels", () => this.tab.open("check"))];
    return [h("h2", {}, "Nothing here"), h("p", {}, "No picture is in this list."), act("Show the unlabeled ones", () => this.go("unlabeled"))];
  }
}
