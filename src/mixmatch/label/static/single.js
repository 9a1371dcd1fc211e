// One picture alone, large, with what is known about it.
import { get } from "./api.js";
import { box as dialog } from "./dialogs.js";
import { button, count, differ, h, percent, say, svg, toast } from "./dom.js";
import { clear, watch } from "./pictures.js";
import { CONFLICT, EXAM, GONE, UNLABELED } from "./store.js";

const SWIPE = 50; // pixels

export class Single {
  constructor(box, store, { turn, close }) {
    Object.assign(this, { box, store, turn });
    this.image = h("img", { alt: "" });
    const arrow = (side, by, name, d) =>
      button(svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d })), () => turn(by), {
        class: `turn icon ${side}`,
        "aria-label": name,
        title: name,
      });
    this.figure = h(
      "figure",
      {},
      this.image,
      arrow("back", -1, "Previous picture (←)", "m15 5-7 7 7 7"),
      arrow("on", 1, "Next picture (→)", "m9 5 7 7-7 7"),
    );
    this.caption = h("figcaption", {});
    this.other = differ();
    this.close = button(["Back ", h("kbd", {}, "Esc")], close);
    box.replaceChildren(this.figure, this.caption);
    this.image.addEventListener("load", () => this.image.classList.toggle("tiny", this.image.naturalWidth <= 64));
    watch(this.image, this.figure, () => store.unreadable(this.n));
    let from = null;
    this.figure.addEventListener("pointerdown", (event) => (from = event.clientX));
    this.figure.addEventListener("pointerup", (event) => {
      if (from !== null && event.pointerType === "touch" && Math.abs(event.clientX - from) > SWIPE)
        turn(event.clientX < from ? 1 : -1);
      from = null;
    });
  }

  show(n, { position, total, note, following }) {
    const { store } = this;
    const turned = this.n !== n;
    if (turned) {
      this.figure.classList.remove("broken", "waiting");
      this.image.alt = store.name[n];
      this.n = n;
      if (following !== undefined) new Image().src = store.image(following); // already there when it is asked for
    }
    if (this.image.getAttribute("src") !== store.image(n)) this.image.src = store.image(n); // also of a file that changed
    const value = store.value(n);
    const flags = store.flags[n];
    const guess = store.guess[n];
    const tag =
      value === UNLABELED
        ? h("span", { class: "soft" }, "no label yet")
        : h("span", { class: "tag", "data-color": store.color(value) }, store.text(value));
    const facts = [
      guess >= 0 &&
        value === UNLABELED &&
        !(flags & EXAM) &&
        `the model says ${store.text(guess)}, ${percent(store.sure[n] / 1000)}`,
      note,
      flags & EXAM && "part of the exam",
      flags & CONFLICT && "two answers",
      flags & GONE && "the file is gone",
    ].filter(Boolean);
    const said = [store.name[n], store.text(value) || "no label", ...facts].join(", ");
    this.box.setAttribute("aria-label", said);
    if (!this.other(n, said, store.color(value), position, total)) return;
    this.caption.replaceChildren(
      tag,
      h("span", { class: "file small" }, store.name[n]),
      h("span", { class: "soft small facts" }, [`${position} of ${count(total, "picture")}`, ...facts].join(" · ")),
      h("span", { class: "grow" }),
      button("History", () => this.tell(n), { class: "plain small past" }),
      this.close,
    );
    if (turned) say(said);
  }

  // The server is there: ask it once more.
  again() {
    if (!this.figure.classList.contains("waiting")) return;
    clear(this.image, this.figure);
    this.image.src = this.store.image(this.n);
  }

  // Who said what of this picture.
  async tell(n) {
    const found = await get(`/api/picture/${n}`).catch((refused) => toast(refused.message));
    const lines = found?.history.map(
      ({ t, who, what, source }) =>
        `${new Date(1000 * t).toLocaleString()}: ${who} said ${this.store.said(what) || "nothing"} (${source})`,
    );
    if (!lines) return;
    dialog("History of this picture", [
      h("p", { class: "soft" }, this.store.name[n]),
      ...(lines.length ? lines : ["Nobody has said anything yet."]).map((line) => h("p", {}, line)),
    ]);
  }
}
