// The classes with their keys, a field that adds or finds one, and how far the work is.
import { newId, post } from "./api.js";
import { manageClasses } from "./classes.js";
import { $, button, count, h, number, setText, toast } from "./dom.js";
import { BROKEN, NONE, SKIP, UNLABELED } from "./store.js";

const MARKS = [
  [NONE, "0", "None of these", "none"],
  [BROKEN, "x", "Not an image", "broken"],
  [SKIP, "z", "Skip for now", "skip"],
];

export class Side {
  constructor(box, store, bench) {
    Object.assign(this, { store, bench });
    this.list = h("ul", { class: "classes" });
    this.marks = h("ul", { class: "classes marks" });
    this.field = h("input", {
      type: "text",
      id: "new-class",
      placeholder: "Add or find a class",
      "aria-label": "Add or find a class",
      maxlength: "80",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.find(),
      onkeydown: (event) => event.key === "Escape" && ((this.field.value = ""), this.find(), bench.focus()),
    });
    const [row, meter] = [
      (...parts) => h("div", { class: "row" }, ...parts),
      (bar, kind = "") => h("div", { class: `meter ${kind}`, "aria-hidden": "true" }, bar),
    ];
    this.labeled = h("b", { id: "labeled" });
    this.rate = h("span", { class: "soft small", id: "rate", title: "labels in the last minute" });
    this.examCount = h("span", { class: "soft small", id: "exam-count" });
    [this.bar, this.examBar] = [h("i"), h("i")];
    this.exam = h("div", {}, row(h("span", {}, "Exam"), this.examCount), meter(this.examBar, "good"));
    const all = h("div", {}, row(h("span", {}, this.labeled, " labeled"), this.rate), meter(this.bar));
    const manage = button("Edit", () => this.manage(), { class: "plain", id: "manage" });
    const form = h(
      "form",
      { onsubmit: (event) => (event.preventDefault(), this.submit()) },
      this.field,
      h("button", { type: "submit" }, "Add"),
    );
    box.replaceChildren(
      h("section", {}, h("header", {}, h("h2", {}, "Classes"), manage), this.list, form),
      h("section", {}, this.marks),
      h("div", { class: "progress" }, all, this.exam),
    );
    this.rows = new Map();
    for (const [value, key, name, counted] of MARKS)
      this.marks.append(h("li", {}, this.row(value, key, name, counted)));
    store.on(() => this.update());
    bench.flash = (value) => this.flash(value);
  }

  manage() {
    manageClasses(this.store, (body) => this.act(body));
  }

  row(value, key, name) {
    const give = () => {
      this.bench.label(value);
      this.bench.focus();
    };
    const shown = h("span", { class: "n" });
    const dot = value >= 0 ? h("span", { class: "dot", "data-color": this.store.color(value) }) : "";
    const content = [
      h("kbd", { "aria-hidden": "true" }, key ?? "·"),
      dot,
      h("span", { class: "name", title: name }, name),
      shown,
    ];
    const element = button(content, give, { class: "class", "data-value": value });
    this.rows.set(value, { element, shown, key, name });
    return element;
  }

  update() {
    const { store } = this;
    if (!store.state) return;
    const signature = JSON.stringify(store.classes.map(({ id, name, key }) => [id, name, key]));
    if (signature !== this.signature) {
      this.signature = signature;
      for (const value of this.rows.keys()) if (value >= 0) this.rows.delete(value);
      this.list.replaceChildren(...store.classes.map(({ id, key, name }) => h("li", {}, this.row(id, key, name))));
      this.find();
    }
    const counts = store.counts();
    const of = (value) =>
      (value >= 0 ? counts.classes.get(value) : counts[MARKS.find((mark) => mark[0] === value)[3]]) ?? 0;
    for (const [value, { element, shown, key, name }] of this.rows) {
      const n = of(value);
      if (shown.textContent === number(n)) continue;
      shown.textContent = number(n);
      element.setAttribute("aria-label", `${name}, ${key ? `key ${key}, ` : ""}${count(n, "picture")}`);
    }
    $("#manage").hidden = !store.state.classes.length;
    this.paintProgress(counts);
  }

  paintProgress(counts) {
    const { state } = this.store;
    setText(this.labeled, number(counts.labeled));
    setText(this.rate, `${number(state.rate.minute)} per min`);
    const fill = (bar, part) => (bar.style.width = `${100 * Math.min(1, part)}%`);
    fill(this.bar, state.total ? counts.labeled / state.total : 0);
    this.exam.hidden = !state.exam.size;
    if (!state.exam.size) return;
    setText(this.examCount, `${counts.exam} of ${number(state.exam.size)}`);
    fill(this.examBar, counts.exam / state.exam.size);
  }

  // A class that was just given lights up.
  flash(value) {
    const found = this.rows.get(value);
    if (!found) return;
    found.element.classList.add("hit");
    clearTimeout(found.fading);
    found.fading = setTimeout(() => found.element.classList.remove("hit"), 350);
  }

  find() {
    const wanted = this.field.value.trim().toLowerCase();
    for (const [value, { element, name }] of this.rows) {
      if (value >= 0) element.parentElement.hidden = Boolean(wanted) && !name.toLowerCase().includes(wanted);
    }
  }

  // A new name becomes a class; the name of a class labels the selection. The field is free for the next name at once.
  async submit(field = this.field) {
    const name = field.value.trim();
    if (!name) return;
    field.value = "";
    this.find();
    const known = this.store.classes.find((each) => each.name.toLowerCase() === name.toLowerCase());
    if (known) {
      this.bench.label(known.id);
      this.bench.focus();
    } else if (!(await this.act({ do: "add", name })) && !field.value) field.value = name;
  }

  // A change of the classes: after everything that was labeled before it, and one after the other.
  act(body) {
    this.acting = (this.acting ?? Promise.resolve()).then(() => this.send(body));
    return this.acting;
  }

  async send(body) {
    try {
      await this.bench.outbox.flush();
      this.store.absorb(
        await post("/api/classes", { id: newId(), since: this.store.seq, listing: this.store.listing, ...body }),
      );
      // An undo must know that something came between. Keys and order are chosen anew, not undone.
      if (!["key", "order"].includes(body.do)) this.bench.done.push({ n: [], before: [], value: UNLABELED });
      return true;
    } catch (refused) {
      toast(refused.message);
      return false;
    }
  }
}
