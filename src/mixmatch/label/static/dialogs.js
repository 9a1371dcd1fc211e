// What lies above the page for a moment: keys, classes, names, two answers, export and import.
import { get, newId, post } from "./api.js";
import { $, count, h, number, toast } from "./dom.js";

export function box(title, children, { wide = false } = {}) {
  const before = document.activeElement;
  const dialog = h("dialog", { "aria-label": title, class: wide ? "wide" : "" }, h("div", {}, h("header", {}, h("h2", {}, title), h("button", { type: "button", class: "plain", onclick: () => dialog.close() }, "Close")), ...children));
  dialog.addEventListener("close", () => {
    dialog.remove();
    before?.focus?.({ preventScroll: true });
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

export function help(bench) {
  const rows = [
    [["1", "9"], "a class: its key is printed on it; further classes have letters"], [["0"], "none of these"], [["x"], "not an image"], [["z"], "skip for now"], [["⌫"], "take the label away"],
    [["←", "→", "↑", "↓"], "move; with Shift select a range, with Ctrl only look"], [["Space"], "select or not"], [["Ctrl", "A"], "select all"], [["Enter"], "one picture alone; in Guesses: confirm"], [["g"], "grid or single"], [["Esc"], "back; select nothing"],
    [["Ctrl", "Z"], "undo, also after a restart"], [["Ctrl", "Shift", "Z"], "redo"], [["c"], "in Check: the label is right"], [["/"], "search"], [["?"], "this list"],
  ];
  const on = h("input", { type: "checkbox", checked: bench.keysOn, onchange: () => {
    bench.keysOn = on.checked;
    localStorage.setItem("mixmatch-keys", on.checked ? "on" : "off");
    bench.selection();
  } });
  box("Keys", [
    h("dl", {}, ...rows.flatMap(([keys, text]) => [h("dt", {}, ...keys.map((key) => h("kbd", {}, key))), h("dd", {}, text)])),
    h("p", { class: "soft small" }, "With the mouse: click, Shift-click, Ctrl-click and drag as in a file manager; double-click shows a picture alone. On a touch screen: tap shows it alone, holding selects."),
    h("label", { class: "line" }, on, "Single keys label (only while the pictures have the focus)"),
  ]);
}

export function askName(store) {
  const field = h("input", { type: "text", value: store.state.who, maxlength: "40", "aria-label": "Your name" });
  const form = h("form", { class: "line", onsubmit: async (event) => {
    event.preventDefault();
    try {
      await post("/api/who", { who: field.value.trim() });
      store.state = { ...store.state, ...(await get("/api/state")) };
      store.tell();
      dialog.close();
    } catch (refused) {
      toast(refused.message);
    }
  } }, field, h("button", { type: "submit", class: "primary" }, "Save"));
  const dialog = box("Your name", [h("p", { class: "soft" }, "It is written beside every label you give, so that two people can tell theirs apart."), form]);
  field.select();
}

export function manageClasses(store, act) {
  const list = h("div", { class: "list" });
  const field = h("input", { type: "text", placeholder: "New class", "aria-label": "New class", maxlength: "80", autocomplete: "off" });
  const form = h("form", { class: "line", onsubmit: async (event) => {
    event.preventDefault();
    const name = field.value.trim();
    if (name && (await act({ do: "add", name }))) field.value = "";
    paint();
  } }, field, h("button", { type: "submit" }, "Add"));
  const dialog = box("Classes", [h("p", { class: "soft small" }, "A class is never lost: hiding keeps its labels, merging moves them to another. Undo works for all of it."), list, form], { wide: true });
  const done = async (body) => {
    if (await act(body)) paint();
  };
  const move = (index, by) => {
    const names = store.classes.map((each) => each.name);
    names.splice(index + by, 0, ...names.splice(index, 1));
    return done({ do: "order", names }).then(() => list.children[index + by]?.querySelector(by < 0 ? ".up" : ".down")?.focus());
  };
  const row = (each, index) => {
    const name = h("input", { type: "text", value: each.name, maxlength: "80", "aria-label": `Name of ${each.name}`, onchange: () => name.value.trim() && name.value.trim() !== each.name && done({ do: "rename", name: each.name, to: name.value.trim() }).then(() => (name.value = store.class(each.id)?.name ?? "")) });
    const key = h("input", { type: "text", class: "key", value: each.key ?? "", maxlength: "1", "aria-label": `Key of ${each.name}`, onchange: () => done({ do: "key", name: each.name, key: key.value.trim() || null }) });
    const others = store.classes.filter((other) => other.id !== each.id);
    const merge = h("select", { "aria-label": `Merge ${each.name} into`, disabled: !others.length, onchange: () => {
      const into = merge.value;
      merge.value = "";
      if (into) confirmMerge(each, into, () => done({ do: "merge", name: each.name, into }));
    } }, h("option", { value: "" }, "Merge into …"), ...others.map((other) => h("option", { value: other.name }, other.name)));
    const arrow = (by, text, what) => h("button", { type: "button", class: `icon plain ${by < 0 ? "up" : "down"}`, "aria-label": `Move ${each.name} ${what}`, disabled: index + by < 0 || index + by >= store.classes.length, onclick: () => move(index, by) }, text);
    return h("div", { class: "line" }, key, name, merge, arrow(-1, "↑", "up"), arrow(1, "↓", "down"), h("button", { type: "button", class: "plain", onclick: () => done({ do: "hide", name: each.name }) }, "Hide"));
  };
  const paint = () => {
    const hidden = store.state.classes.filter((each) => each.hidden);
    list.replaceChildren(
      ...store.classes.map(row),
      hidden.length ? h("h3", {}, "Hidden") : "",
      ...hidden.map((each) => h("div", { class: "line" }, h("span", { class: "name" }, `${each.name} (${count(each.labeled, "label")})`), h("button", { type: "button", class: "plain", onclick: () => done({ do: "show", name: each.name }) }, "Show"))),
    );
  };
  paint();
  return dialog;
}

function confirmMerge(each, into, run) {
  const dialog = box(`Merge ${each.name} into ${into}?`, [h("p", {}, `${count(each.labeled, "label")} become ${into}. ${each.name} stays, hidden. You can undo it.`), h("div", { class: "acts" }, h("button", { type: "button", class: "primary", onclick: () => (dialog.close(), run()) }, "Merge"), h("button", { type: "button", onclick: () => dialog.close() }, "Leave it"))]);
}

// Both answers side by side, the picture above them. `known` are conflicts the server told this tab about.
const known = new Map();
export function remember(conflicts) {
  for (const conflict of conflicts) known.set(conflict.n, conflict);
}

async function answers(store, n) {
  const here = store.text(store.value(n)) || "no label";
  const conflict = known.get(n);
  const text = (wire) => (wire === null ? "no label" : wire.startsWith(":") ? store.text(store.fromWire(wire)) : wire);
  if (conflict) return [{ value: conflict.theirs, text: text(conflict.theirs), who: conflict.who }, { value: conflict.yours, text: text(conflict.yours), who: "you" }];
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
    h("div", { class: "pair" }, ...choices.map((choice) => h("button", { type: "button", onclick: () => pick(choice) }, h("b", {}, choice.text), h("span", { class: "soft small" }, ` ${choice.who === "you" ? "you" : choice.who}`)))),
    h("p", { class: "soft small" }, "Both are in the log. Choose the one that counts, or press Escape and leave it for later."),
  ]);
}

export function exchange(store) {
  const link = (as, text) => h("a", { href: `/api/export?as=${as}`, download: "" }, text);
  const folders = async (how) => {
    try {
      const { to, count: made, left_out } = await post("/api/export/folders", { how });
      said.textContent = `${count(made, "picture")} in ${to}${left_out ? `, ${number(left_out)} left out` : ""}.`;
    } catch (refused) {
      said.textContent = refused.message;
    }
  };
  const said = h("p", { role: "status" });
  const file = h("input", { type: "file", accept: ".csv,.json,text/csv,application/json", "aria-label": "File to import", onchange: async () => {
    const [chosen] = file.files;
    if (chosen) await take(chosen.name.endsWith(".json") ? "ls" : "csv", await chosen.text());
    file.value = "";
  } });
  const take = async (as, text) => {
    try {
      const body = await post("/api/import", { id: newId(), as, text, since: store.seq, listing: store.listing });
      store.absorb(body);
      const { labeled, same, conflicts, unknown_count } = body.imported;
      said.textContent = `${count(labeled, "label")} taken over, ${number(same)} were there already, ${count(conflicts, "conflict")}, ${count(unknown_count, "unknown file")}.`;
    } catch (refused) {
      said.textContent = refused.message;
    }
  };
  const button = (text, run) => h("button", { type: "button", onclick: run }, text);
  box("Export and import", [
    h("h3", {}, "Labels as a file"), h("p", {}, link("csv", "CSV for --labels-file"), "  ·  ", link("ls", "JSON for Label Studio")),
    h("h3", {}, "Pictures in a folder per class"), h("p", { class: "soft small" }, "In a new folder beside yours. Your pictures are never moved."), h("div", { class: "acts" }, button("Copy", () => folders("copy")), button("Link", () => folders("link"))),
    h("h3", {}, "Import"), h("p", { class: "soft small" }, "A CSV with the columns file and label, or Label Studio's JSON."), file, h("div", { class: "acts" }, button("Take over class folders again", () => take("folders"))),
    said,
  ]);
}

export function menu(anchor, entries) {
  if ($(".menu")) return;
  const close = () => {
    list.remove();
    anchor.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", outside);
  };
  const outside = (event) => !list.contains(event.target) && !anchor.contains(event.target) && close();
  const list = h("div", { class: "menu", role: "menu" }, ...entries.map((entry) => (entry ? h("button", { type: "button", role: "menuitem", onclick: () => (close(), entry[1]()) }, entry[0]) : h("hr"))));
  list.addEventListener("keydown", (event) => {
    const items = [...list.querySelectorAll("button")];
    const index = items.indexOf(document.activeElement);
    if (event.key === "Escape") (close(), anchor.focus());
    else if (event.key === "ArrowDown") items[(index + 1) % items.length].focus();
    else if (event.key === "ArrowUp") items[(index + items.length - 1) % items.length].focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  anchor.after(list);
  anchor.setAttribute("aria-expanded", "true");
  document.addEventListener("pointerdown", outside);
  list.firstChild.focus();
}
