// Two people, or two tabs, gave a picture different labels: both answers, and a choice.
import { get } from "./api.js";
import { box } from "./dialogs.js";
import { button, h, toast } from "./dom.js";

// Both answers side by side, the picture above them. `known` are conflicts the server told this tab about.
const known = new Map();
export function remember(conflicts) {
  for (const conflict of conflicts) known.set(conflict.n, conflict);
}

// The label that counts now and the one that came later, each with who gave it.
async function answers(store, n) {
  const text = (wire) => (wire === null ? "no label" : store.text(store.fromWire(wire)));
  const told = known.get(n);
  const found = told ? { label: told.yours, who: "you" } : (await get(`/api/picture/${n}`)).conflict;
  const now = store.wire(store.value(n));
  const first = { value: now, text: text(now), who: told?.who ?? store.state.people[store.who[n]] ?? "" };
  return found ? [first, { value: found.label, text: text(found.label), who: found.who }] : [first];
}

export async function decide(store, bench, n) {
  const choices = await answers(store, n).catch((refused) => toast(refused.message));
  if (!choices) return;
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
