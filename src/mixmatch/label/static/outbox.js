// Changes on their way to the disk. Each is written to localStorage before the page shows it and stays there until the
// server says that it is saved. Every change has a key of its own, so that tabs never overwrite each other's, and an id,
// so that sending it twice does no harm: whatever a closed or crashed tab left behind is sent by the next one.
import { newId, post } from "./api.js";

const PREFIX = "mixmatch-outbox:";
const TOGETHER = 100; // changes per request
const PATIENCE = 2000; // ms between attempts while the server is away

// Until the page shows what was done: a request takes a millisecond that the next frame would wait for. A page in the
// background has no frames.
const shown = () =>
  new Promise((wake) => {
    requestAnimationFrame(() => setTimeout(wake));
    setTimeout(wake, 50);
  });

export class Outbox {
  constructor(store, { conflicts, told, reversed }) {
    Object.assign(this, { store, conflicts, told, reversed });
    this.waiting = []; // in the order they were made
    this.parked = []; // of another list of pictures, until this one is complete
    this.refused = []; // the server understood and said no: kept until a person decides
    this.trouble = null; // {status, line} of the last attempt
    this.sending = false;
    this.flushing = []; // who waits for all of it to be saved
    this.tick = 0;
  }

  get count() {
    return [...this.waiting, ...this.parked].reduce((sum, change) => sum + change.n.length, 0);
  }

  // Something waits in this page alone: localStorage is full or off.
  get unkept() {
    return this.waiting.some((change) => change.unkept);
  }

  // What earlier tabs left behind, oldest first. Numbers of another list of pictures mean nothing in this one: those
  // changes wait until all files are known, and find their pictures by name.
  adopt() {
    const found = [];
    for (const key of Object.keys(localStorage)) {
      if (!key.startsWith(PREFIX)) continue;
      try {
        const change = JSON.parse(localStorage.getItem(key));
        if (change.path === this.store.state.path) found.push({ ...change, key });
      } catch {
        localStorage.removeItem(key); // not ours
      }
    }
    found.sort((a, b) => a.time - b.time || a.tick - b.tick);
    const { listing } = this.store;
    this.waiting.push(...found.filter((change) => change.listing === listing));
    this.parked = found.filter((change) => change.listing !== listing);
    this.overlay();
    this.send();
    if (this.parked.length) this.store.complete.then((all) => all && this.unpark());
  }

  unpark() {
    const numbers = new Map(this.store.name.map((name, n) => [name, n]));
    for (const change of this.parked.splice(0)) {
      this.renumber(change, numbers);
      if (change.n.length || change.kind !== "label") this.waiting.push(change);
      else if (change.key) localStorage.removeItem(change.key);
    }
    this.overlay();
    this.send();
  }

  renumber(change, numbers) {
    const found = change.n.map((_, i) => numbers.get(change.names?.[i]));
    const where = [...found.keys()].filter((i) => found[i] !== undefined);
    const lost = change.n.length - where.length;
    if (lost)
      this.refused.push({ ...change, n: Array(lost).fill(-1), line: "Their files are not in the folder any more." });
    for (const name of ["names", "before", "values"])
      if (change[name]) change[name] = where.map((i) => change[name][i]);
    change.n = where.map((i) => found[i]);
    change.listing = this.store.listing;
    this.keep(change);
  }

  keep(change) {
    change.key ??= `${PREFIX}${change.id}`;
    const { key, unkept, ...plain } = change;
    for (const kept of [plain, { ...plain, names: undefined }]) {
      try {
        localStorage.setItem(key, JSON.stringify(kept));
        change.unkept = false;
        return;
      } catch {
        // too large with the names: the numbers alone
      }
    }
    change.unkept = true;
  }

  // `n` pictures get `value`; or, for an undo or redo, the `values` we expect them to have afterwards.
  add({ kind, n, value, values, source }) {
    const { store } = this;
    const change = {
      id: newId(),
      kind,
      n,
      value,
      values,
      source,
      time: Date.now(),
      tick: this.tick++,
      path: store.state.path,
      listing: store.listing,
      names: n.map((each) => store.name[each]),
    };
    if (kind === "label") {
      change.label = store.wire(value);
      change.before = n.map((each) => store.wire(store.value(each)));
    }
    this.waiting.push(change);
    this.keep(change);
    for (let i = 0; i < n.length; i++) store.pending.set(n[i], values ? values[i] : value);
    store.tell();
    this.told();
    this.send();
    return change;
  }

  overlay() {
    const pending = new Map();
    for (const { n, value, values } of this.waiting) {
      for (let i = 0; i < n.length; i++) pending.set(n[i], values ? values[i] : value);
    }
    this.store.pending = pending;
    this.store.tell();
    this.told();
  }

  settle(changes) {
    const gone = new Set(changes);
    for (const change of changes) localStorage.removeItem(change.key);
    this.waiting = this.waiting.filter((change) => !gone.has(change));
    this.overlay();
    for (const { resolve, reject } of this.flushing.splice(0)) this.flush().then(resolve, reject);
  }

  // Resolves when nothing waits any more; fails as soon as something cannot be saved now.
  flush() {
    if (!this.waiting.length) return Promise.resolve();
    this.send();
    return new Promise((resolve, reject) => this.flushing.push({ resolve, reject }));
  }

  async send() {
    if (this.sending || !this.waiting.length) return;
    this.sending = true;
    clearTimeout(this.again);
    try {
      await shown(); // and keys of the same moment go together
      await this.sendAll();
    } finally {
      this.sending = false; // also after a bug: it is tried again
    }
    if (!this.waiting.length) this.alone = false;
    this.told();
  }

  async sendAll() {
    while (this.waiting.length) {
      const batch = this.batch();
      try {
        const body = await this.deliver(batch);
        this.trouble = null;
        this.store.absorb(body);
        if (body.conflicts?.length) this.conflicts(body.conflicts);
        if (body.undone) this.reversed(batch[0], body.undone);
        this.settle(batch.filter((change) => change.kind !== "label" || body.saved.includes(change.id)));
      } catch (refused) {
        if (refused.status === undefined) throw refused; // a bug of ours, not an answer
        if (!(await this.resolve(refused, batch))) return;
      }
    }
  }

  // Labels one after the other in one request; an undo goes alone.
  batch() {
    const labels = this.waiting.findIndex((change) => change.kind !== "label");
    if (labels === 0 || this.alone) return this.waiting.slice(0, 1);
    return this.waiting.slice(0, labels < 0 ? TOGETHER : Math.min(labels, TOGETHER));
  }

  // With the list that the numbers belong to: the server refuses those of another.
  deliver(batch) {
    const since = this.store.seq;
    const [{ id, kind, listing }] = batch;
    if (kind !== "label") return post(`/api/${kind}`, { id, since, listing });
    const changes = batch.map(({ id, n, label, before, source }) => ({ id, n, label, before, source }));
    return post("/api/labels", { changes, since, listing });
  }

  // Says whether to try again at once.
  async resolve(refused, batch) {
    const { status } = refused;
    if (status === 410) {
      this.store.moved();
      return false;
    }
    if (status === 400 || status === 404 || status === 413 || status === 415 || status === 422) {
      this.trouble = null; // it is an answer
      if (batch.length > 1) return (this.alone = true); // one of them is refused: find out which
      this.alone = false;
      const [change] = batch;
      if (change.kind === "label") this.refused.push({ ...change, line: refused.message });
      else {
        this.reversed(change, { what: refused.message, kept: [] }, true);
        this.store.images = null; // nothing to undo after all: look at everything anew
      }
      this.settle(batch);
      return true;
    }
    this.trouble = { status, line: refused.message };
    for (const { reject } of this.flushing.splice(0)) reject(refused);
    for (const change of this.waiting) if (change.unkept) this.keep(change); // there may be room by now
    this.told();
    clearTimeout(this.again);
    this.again = setTimeout(() => this.send(), PATIENCE);
    return false;
  }
}
