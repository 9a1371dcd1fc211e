// Puts the parts together: tabs, what is saved, bars on top, and a look at the server every two seconds.
import { get, post } from "./api.js";
import { Bench } from "./bench.js";
import { CheckView } from "./check.js";
import { decide, remember } from "./conflicts.js";
import { askName, exchange, help, menu } from "./dialogs.js";
import { $, button, count, differ, h, number, setText, toast } from "./dom.js";
import { GuessesView } from "./guesses.js";
import { LabelView } from "./label.js";
import { Outbox } from "./outbox.js";
import { Side } from "./side.js";
import { Store } from "./store.js";
import { TrainView } from "./train.js";

const POLL = 2000;
const NAMES = ["label", "guesses", "check", "train"];

const store = new Store();
const outbox = new Outbox(store, { conflicts: disagree, told: () => saved(), reversed });
let away = false; // the server did not answer the last question
let fresh = []; // conflicts of this tab that nobody has looked at

// ------------------------------------------------------------------------------------------------------------- tabs

const tab = {
  current: "label",
  open(name, filter) {
    if (name !== this.current) $(".banners").replaceChildren(); // its buttons are for the pictures below it
    this.current = name;
    for (const each of NAMES) {
      $(`#tab-${each}`).setAttribute("aria-selected", String(each === name));
      $(`#tab-${each}`).tabIndex = each === name ? 0 : -1;
    }
    $("#bench").hidden = name === "train";
    $("#train").hidden = name !== "train";
    $("#bench").setAttribute("aria-labelledby", `tab-${name}`);
    history.replaceState(null, "", `#${name}`);
    if (filter) views.label.filter = filter;
    views[name].open();
    if (name !== "train") bench.focus();
  },
  async rescan() {
    try {
      store.absorb(await post("/api/rescan", {}));
      toast("Looking for new files …");
    } catch (refused) {
      toast(refused.message);
    }
  },
  // Draw pictures for the exam, and go to it.
  exam(size) {
    this.open("label", "exam");
    views.label.draw(size);
  },
};

const bench = new Bench(store, outbox);
bench.help = () => help(bench);
const side = new Side($(".side"), store, bench);
const views = {
  label: new LabelView(store, bench, { tab, side }),
  guesses: new GuessesView(store, bench, { tab, conflicts: disagree }),
  check: new CheckView(store, bench, { tab }),
  train: new TrainView($("#train"), store, bench, { tab }),
};

for (const name of NAMES) {
  $(`#tab-${name}`).addEventListener("click", () => tab.open(name));
  $(`#tab-${name}`).addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = NAMES[(NAMES.indexOf(name) + by + NAMES.length) % NAMES.length];
    tab.open(next);
    $(`#tab-${next}`).focus();
    event.preventDefault();
  });
}
$("#undo").addEventListener("click", () => (bench.reverse("undo"), bench.focus()));
$("#redo").addEventListener("click", () => (bench.reverse("redo"), bench.focus()));
$("#more").addEventListener("click", () =>
  menu($("#more"), [
    ["Export and import …", () => exchange(store)],
    [`Your name: ${store.state?.who ?? ""} …`, () => askName(store)],
    ["Edit the classes …", () => side.manage()],
    ["Look for new files", () => tab.rescan()],
    null,
    ["Keys …", () => help(bench)],
  ]),
);

// -------------------------------------------------------------------------------------------------- saved, and bars

function saved() {
  const waiting = outbox.count || outbox.waiting.length;
  const down = Boolean(outbox.trouble) || away;
  const line = $("#saved");
  line.dataset.state = down ? "away" : waiting ? "sending" : "saved";
  setText(
    line,
    down && waiting
      ? `${number(waiting)} not saved`
      : down
        ? "No server"
        : waiting
          ? `Saving ${number(waiting)}`
          : "Saved",
  );
  bars(waiting);
}

let drawn = "";
function bars(waiting) {
  const { trouble, refused, unkept } = outbox;
  const disk = trouble?.status === 507 ? trouble.line : store.state?.disk;
  const key = JSON.stringify([away, trouble, waiting, refused.length, unkept, fresh.length, disk, store.state?.notes]);
  if (key === drawn) return;
  drawn = key;
  const list = [];
  const labels = count(waiting, "label");
  const [are, wait] = waiting === 1 ? ["is", "waits"] : ["are", "wait"];
  const alone = `${labels} ${wait} in this page alone, since this browser cannot keep more (its storage is full or switched off): do not close the page before it says Saved.`;
  const kept = !waiting
    ? "Everything so far is saved."
    : unkept
      ? alone
      : `${labels} ${are} kept in this browser and will be saved when it is back.`;
  const bar = (kind, text, ...acts) =>
    list.push(h("div", { class: kind, role: kind === "away" ? "alert" : "status" }, h("span", {}, text), ...acts));
  if (trouble?.status === 403 || away === 403)
    bar("away", `This page no longer has access to the server. Open the address that mixmatch label prints. ${kept}`);
  else if (away === 410)
    bar("away", `The list of pictures has changed, and ${labels} could not be kept: note them, then reload.`);
  else if (disk) bar("away", `${disk}. ${unkept ? alone : waiting ? `${labels} ${wait} in this browser.` : ""}`);
  else if (trouble || away)
    bar("away", `The server does not answer. ${kept} Start it again: mixmatch label ${store.state?.folder ?? ""}`);
  for (const change of refused) {
    bar(
      "warn",
      `Not saved: ${count(change.n.length, "picture")} as ${change.label ?? "unlabeled"}. ${change.line}`,
      button("Put away", () => (refused.splice(refused.indexOf(change), 1), saved())),
    );
  }
  if (fresh.length) {
    const [first] = fresh;
    bar(
      "warn",
      `${count(fresh.length, "picture")} got another label from ${first.who} at the same time.`,
      button("Show both", () => (fresh.shift(), decide(store, bench, first.n), saved()), { id: "decide" }),
      button("Later", () => ((fresh = []), saved())),
    );
  }
  const put = new Set(JSON.parse(localStorage.getItem(`mixmatch-notes:${store.listing}`) ?? "[]"));
  for (const note of store.state?.notes ?? []) {
    if (put.has(note.key)) continue;
    bar(
      "warn",
      note.text,
      button("OK", () => {
        localStorage.setItem(`mixmatch-notes:${store.listing}`, JSON.stringify([...put, note.key]));
        drawn = "";
        saved();
      }),
    );
  }
  $("#bars").replaceChildren(...list);
}

// What an undo or redo did is said by the server: it knows the whole story, and what it left alone. Asked a second time,
// since its first answer was lost, it does not say what.
function reversed({ kind }, { what, left, kept }, refused = false) {
  const others = kept?.length ? ` ${count(kept.length, "picture")} left alone: somebody else changed them since.` : "";
  const verb = kind === "undo" ? "Undone" : "Done again";
  const done = left ? `Left alone, ${left}.` : what ? `${verb}: ${what}.` : `${verb}.`;
  toast(refused ? what : `${done}${others}`);
  views[tab.current].reversed?.();
}

// The server has another list of pictures, and every number on this page is wrong. What waits is in localStorage with the
// names of its files: the page starts anew and finds them. Where nothing could be kept there, a person has to decide.
store.moved = () => {
  if (outbox.unkept) away = 410;
  else location.reload();
};

function disagree(conflicts) {
  remember(conflicts);
  fresh.push(...conflicts);
  saved();
}

// A number behind the name of a tab.
const others = { check: differ(), train: differ() };
function mark(name, text) {
  if (!others[name](text)) return;
  const title = { check: "Check", train: "Train" }[name];
  $(`#tab-${name}`).replaceChildren(title, text ? h("span", { class: "n" }, text) : "");
}

store.on(() => {
  const { state } = store;
  if (!state) return;
  document.title = `${state.folder}: mixmatch label`;
  setText($("#folder"), state.folder);
  $("#folder").title = state.path;
  setText($("#total"), store.growing ? `${number(state.total)} so far …` : count(state.total, "picture"));
  $("#undo").disabled = !(bench.done.length > 0 || state.undo);
  $("#redo").disabled = !(bench.undone.length > 0 || state.redo);
  $("#undo").title = `Undo${state.undo && !outbox.waiting.length ? `: ${state.undo.what}` : ""} (Ctrl+Z)`;
  const { step, steps } = state.train;
  const part = steps ? `${Math.round((100 * step) / steps)} %` : "…";
  mark("check", state.counts.conflicts ? number(state.counts.conflicts) : "");
  mark("train", ["trial", "running", "guessing"].includes(state.train.state) ? part : "");
  views[tab.current].update();
  saved();
});

// ---------------------------------------------------------------------------------------------------------- the server

let polling = 0;
async function poll() {
  if (!store.state) return; // `start` is at it
  clearTimeout(polling);
  try {
    if (store.images === null) await store.reload();
    store.absorb(await get(`/api/changes?since=${store.seq}`));
    outbox.send(); // what waits still
    away = false;
    bench.again();
  } catch (refused) {
    if (refused.status === undefined) throw refused;
    away = refused.status || 1;
  }
  saved();
  schedule();
}

function schedule() {
  clearTimeout(polling);
  if (!document.hidden) polling = setTimeout(poll, POLL);
}

document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(polling) : poll()));
window.addEventListener("online", poll);
window.addEventListener("beforeunload", (event) => outbox.unkept && event.preventDefault());

async function start() {
  try {
    await store.load();
  } catch (refused) {
    if (refused.status === undefined) throw refused;
    away = refused.status || 1;
    saved();
    setTimeout(start, POLL);
    return;
  }
  away = false;
  for (const waiting of document.querySelectorAll("[inert]")) waiting.inert = false; // there is something to act upon
  outbox.adopt();
  const wanted = location.hash.slice(1);
  tab.open(NAMES.includes(wanted) ? wanted : "label");
  schedule();
}

start();
