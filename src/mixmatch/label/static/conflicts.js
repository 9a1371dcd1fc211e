// Two people, or two tabs, gave a picture different labels: both answers, and a choice.
import { get } from "./api.js";
import { box } from "./dialogs.js";
import { button, h, toast } from "./dom.js";

// Both answers side by side, the picture above them. `known` are conflicts the server told this tab about.
const known = new Map();
export function remember(conflicts) {
  for (const conflict of conflicts) known.set(conflict.n, conflict);
}

async function answers(store, n) {
  const here = store.text(store.value(n)) || "no label";
  const conflict = known.get(n);
  const text = (wire) => (wire === null ? "no label" : wire.startsWith(":") ? store.text(store.fromWire(wire)) : wire);
  if (conflict)
    return [
      { value: conflict.theirs, text: text(conflict.theirs), who: conflict.who },
      { value: conflict.yours, text: text(conflict.yours), who: "you" },
    ];
  const { history } = await get(`/api/picture/${n}`);
  const seen = new Map();
  for (const { what, who } of history) if (!seen.has(what)) seen.set(what, { value: what, text: text(what), who });
  const found = [...seen.values()].slice(0, 2);
  return found.length ? found : [{ value: store.wire(store.value(n)), text: here, who: "now" }];
}

export async function decide(store, bench, n) {
  const choices = await answers(store, n);
  const pick = (choice) => {
    dialog.close();
    // also when it is the label it has: saying so again settles it
    bench.outbox.add({ kind: "label", n: [n], value: store.fromWire(choice.value), source: "fix" });
    known.delete(n);
    toast(`${store.name[n]}: ${choice.text}`);
  };
  const dialog = box("Two answers", [
    h("div", { class: "conflict" }, h("img", { src: store.image(n), alt: store.name[n] })),
    h("p", { class: "soft small" }, store.name[n]),
    h(
      "div",
      { class: "pair" },
      ...choices.map((choice) =>
        button([h("b", {}, choice.text), h("span", { class: "soft small" }, ` ${choice.who}`)], () => pick(choice)),
      ),
    ),
    h(
      "p",
      { class: "soft small" },
      "Both are in the log. Choose the one that counts, or press Escape and leave it for later.",
    ),
  ]);
}
