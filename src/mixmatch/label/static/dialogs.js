// What lies above the page for a moment: keys, a name, export and import, the menu.
import { get, newId, post } from "./api.js";
import { $, button, count, h, number, toast } from "./dom.js";

export function box(title, children, { wide = false } = {}) {
  const before = document.activeElement;
  const dialog = h(
    "dialog",
    { "aria-label": title, class: wide ? "wide" : "" },
    h(
      "div",
      {},
      h(
        "header",
        {},
        h("h2", {}, title),
        button("Close", () => dialog.close(), { class: "plain" }),
      ),
      ...children,
    ),
  );
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
    [["1 – 9"], "a class: its key is printed on it; further classes have letters"],
    [["0"], "none of these"],
    [["x"], "not an image"],
    [["z"], "skip for now"],
    [["⌫"], "remove the label"],
    [["←", "→", "↑", "↓"], "move; with Shift select a range, with Ctrl move without selecting"],
    [["Space"], "select or deselect"],
    [["Ctrl", "A"], "select all"],
    [["Enter"], "one picture alone; in Guesses: confirm"],
    [["g"], "grid or single"],
    [["Esc"], "back; select nothing"],
    [["Ctrl", "Z"], "undo, also after a restart"],
    [["Ctrl", "Shift", "Z"], "redo"],
    [["c"], "in Check: the label is right"],
    [["/"], "search"],
    [["?"], "this list"],
  ];
  const on = h("input", {
    type: "checkbox",
    checked: bench.keysOn,
    onchange: () => {
      bench.keysOn = on.checked;
      localStorage.setItem("mixmatch-keys", on.checked ? "on" : "off");
      bench.selection();
    },
  });
  box("Keys", [
    h(
      "dl",
      {},
      ...rows.flatMap(([keys, text]) => [h("dt", {}, ...keys.map((key) => h("kbd", {}, key))), h("dd", {}, text)]),
    ),
    h(
      "p",
      { class: "soft small" },
      "With the mouse: click, Shift-click, Ctrl-click and drag as in a file manager; double-click shows a picture alone. On a touch screen: tap shows it alone, holding selects.",
    ),
    h("label", { class: "line" }, on, "Single keys label (only while the pictures have the focus)"),
  ]);
}

export function askName(store) {
  const field = h("input", { type: "text", value: store.state.who, maxlength: "40", "aria-label": "Your name" });
  const form = h(
    "form",
    {
      class: "line",
      onsubmit: async (event) => {
        event.preventDefault();
        try {
          await post("/api/who", { who: field.value.trim() });
          store.state = { ...store.state, ...(await get("/api/state")) };
          store.tell();
          dialog.close();
        } catch (refused) {
          toast(refused.message);
        }
      },
    },
    field,
    h("button", { type: "submit", class: "primary" }, "Save"),
  );
  const dialog = box("Your name", [
    h("p", { class: "soft" }, "It is stored with every label you give, so that two people can tell theirs apart."),
    form,
  ]);
  field.select();
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
  const file = h("input", {
    type: "file",
    accept: ".csv,.json,text/csv,application/json",
    "aria-label": "File to import",
    onchange: async () => {
      const [chosen] = file.files;
      if (chosen) await take(chosen.name.endsWith(".json") ? "ls" : "csv", await chosen.text());
      file.value = "";
    },
  });
  const take = async (as, text) => {
    try {
      const body = await post("/api/import", { id: newId(), as, text, since: store.seq, listing: store.listing });
      store.absorb(body);
      const { labeled, same, conflicts, unknown_count } = body.imported;
      said.textContent = `${count(labeled, "label")} imported, ${number(same)} were there already, ${count(conflicts, "conflict")}, ${count(unknown_count, "unknown file")}.`;
    } catch (refused) {
      said.textContent = refused.message;
    }
  };
  box("Export and import", [
    h("h3", {}, "Labels as a file"),
    h("p", {}, link("csv", "CSV for --labels-file"), "  ·  ", link("ls", "JSON for Label Studio")),
    h("h3", {}, "Pictures in a folder per class"),
    h("p", { class: "soft small" }, "In a new folder next to yours. Your pictures are never moved."),
    h(
      "div",
      { class: "acts" },
      button("Copy", () => folders("copy")),
      button("Link", () => folders("link")),
    ),
    h("h3", {}, "Import"),
    h("p", { class: "soft small" }, "A CSV with the columns file and label, or Label Studio's JSON."),
    file,
    h(
      "div",
      { class: "acts" },
      button("Import class folders again", () => take("folders")),
    ),
    said,
  ]);
}

export function menu(anchor, entries) {
  const open = $(".menu");
  if (open) return open.close();
  const close = () => {
    list.remove();
    anchor.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", outside);
  };
  const outside = (event) => !list.contains(event.target) && !anchor.contains(event.target) && close();
  const list = h(
    "div",
    { class: "menu", role: "menu" },
    ...entries.map((entry) => (entry ? button(entry[0], () => (close(), entry[1]()), { role: "menuitem" }) : h("hr"))),
  );
  list.addEventListener("keydown", (event) => {
    const items = [...list.querySelectorAll("button")];
    const index = items.indexOf(document.activeElement);
    if (event.key === "Tab") return close();
    if (event.key === "Escape") (close(), anchor.focus());
    else if (event.key === "ArrowDown") items[(index + 1) % items.length].focus();
    else if (event.key === "ArrowUp") items[(index + items.length - 1) % items.length].focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  list.close = close;
  anchor.after(list);
  anchor.setAttribute("aria-expanded", "true");
  document.addEventListener("pointerdown", outside);
  list.firstChild.focus();
}
