// The classes: add, rename, merge, reorder, hide, and their keys.
import { box } from "./dialogs.js";
import { button, count, h, primary, toast } from "./dom.js";

export function manageClasses(store, act) {
  const list = h("div", { class: "list" });
  const field = h("input", {
    type: "text",
    placeholder: "New class",
    "aria-label": "New class",
    maxlength: "80",
    autocomplete: "off",
  });
  const form = h(
    "form",
    {
      class: "line",
      onsubmit: async (event) => {
        event.preventDefault();
        const name = field.value.trim();
        if (name && (await act({ do: "add", name }))) field.value = "";
        paint();
      },
    },
    field,
    h("button", { type: "submit" }, "Add"),
  );
  const dialog = box(
    "Classes",
    [
      h(
        "p",
        { class: "soft small" },
        "A class is never lost: hiding keeps its labels, merging moves them to another. Undo reverts everything but keys and order.",
      ),
      list,
      form,
    ],
    { wide: true },
  );
  const done = async (body) => {
    await act(body);
    paint(); // as it is now, also where it was refused
  };
  const move = (name, by) => {
    const names = store.classes.map((each) => each.name);
    const to = names.indexOf(name) + by; // where it is now, not where it was when the row was drawn
    if (!(to in names)) return;
    names.splice(to, 0, ...names.splice(to - by, 1));
    return done({ do: "order", names }).then(() => list.children[to]?.querySelector(by < 0 ? ".up" : ".down")?.focus());
  };
  const edit = (value, properties, change) => {
    const field = h("input", { type: "text", value, ...properties });
    field.shown = value;
    field.addEventListener("change", () => {
      field.shown = field.value;
      change(field.value.trim());
    });
    return field;
  };
  const row = (each, index) => {
    const rename = (to) => to && to !== each.name && done({ do: "rename", name: each.name, to });
    const name = edit(each.name, { maxlength: "80", "aria-label": `Name of ${each.name}` }, rename);
    const choose = (to) => {
      const other = store.state.classes.find((other) => other.id !== each.id && other.key === to.toLowerCase());
      if (!to || !other) return done({ do: "key", name: each.name, key: to || null });
      toast(`the key ${other.key} is that of '${other.name}': choose another`);
      key.value = key.shown = each.key ?? "";
    };
    const key = edit(each.key ?? "", { class: "key", maxlength: "1", "aria-label": `Key of ${each.name}` }, choose);
    const others = store.classes.filter((other) => other.id !== each.id);
    const merge = h(
      "select",
      {
        "aria-label": `Merge ${each.name} into`,
        disabled: !others.length,
        onchange: () => {
          const into = merge.value;
          merge.value = "";
          if (into) confirmMerge(each, into, () => done({ do: "merge", name: each.name, into }));
        },
      },
      h("option", { value: "" }, "Merge into …"),
      ...others.map((other) => h("option", { value: other.name }, other.name)),
    );
    const arrow = (by, text, what) =>
      button(text, () => move(each.name, by), {
        class: `icon plain ${what}`,
        "aria-label": `Move ${each.name} ${what}`,
        disabled: index + by < 0 || index + by >= store.classes.length,
      });
    return h(
      "div",
      { class: "line" },
      key,
      name,
      merge,
      arrow(-1, "↑", "up"),
      arrow(1, "↓", "down"),
      button("Hide", () => done({ do: "hide", name: each.name }), { class: "plain", "aria-label": `Hide ${each.name}` }),
    );
  };
  let held = false;
  let late = false;
  list.addEventListener("pointerdown", (event) => {
    if (!event.target.closest("button")) return;
    held = true;
    const ends = ["pointerup", "pointercancel"];
    const released = () => {
      held = false;
      ends.forEach((end) => document.removeEventListener(end, released));
      if (late) setTimeout(paint); // after the click
    };
    ends.forEach((end) => document.addEventListener(end, released));
  });
  const paint = () => {
    late = held;
    if (held) return; // a button that is pressed must be there when it is let go, or there is no click
    const field = document.activeElement;
    if (list.contains(field) && field.matches("input") && field.value !== field.shown) {
      field.addEventListener("blur", paint, { once: true }); // somebody is typing: not under their fingers
      return;
    }
    const hidden = store.state.classes.filter((each) => each.hidden);
    list.replaceChildren(
      ...store.classes.map(row),
      hidden.length ? h("h3", {}, "Hidden") : "",
      ...hidden.map((each) =>
        h(
          "div",
          { class: "line" },
          h("span", { class: "name" }, `${each.name} (${count(each.labeled, "label")})`),
          button("Show", () => done({ do: "show", name: each.name }), { class: "plain", "aria-label": `Show ${each.name}` }),
        ),
      ),
    );
  };
  paint();
  return dialog;
}

function confirmMerge(each, into, run) {
  const dialog = box(`Merge ${each.name} into ${into}?`, [
    h(
      "p",
      {},
      `${count(each.labeled, "label")} ${each.labeled === 1 ? "becomes" : "become"} ${into}. ${each.name} stays, hidden. You can undo it.`,
    ),
    h(
      "div",
      { class: "acts" },
      primary("Merge", () => (dialog.close(), run())),
      button("Leave it", () => dialog.close()),
    ),
  ]);
}
