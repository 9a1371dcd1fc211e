// What the page knows: the server's word for every picture, and on top of it what this tab has changed and the server has
// not yet confirmed. A value is a small number: a class's id, or one of the marks below.
import { get } from "./api.js";

export const UNLABELED = -1,
  SKIP = -2,
  NONE = -3,
  BROKEN = -4;
export const EXAM = 1,
  TEST = 2,
  CONFLICT = 4,
  GONE = 8,
  UNREADABLE = 16,
  TAKEN_OVER = 32;
const MARKS = { [SKIP]: ":skip", [NONE]: ":none", [BROKEN]: ":broken" };
const MARK_TEXTS = { [SKIP]: "skipped", [NONE]: "none of these", [BROKEN]: "not an image" };
const COLORS = 8;

export class Store {
  constructor() {
    this.state = null;
    this.pending = new Map(); // picture -> value, not confirmed yet
    this.listeners = [];
    this.generation = 0; // grows when the list of pictures is another
    Object.assign(this, { name: [], label: [], who: [], flags: [], guess: [], sure: [], order: [], seq: -1 });
  }

  on(listener) {
    this.listeners.push(listener);
  }

  // Listeners run once per frame, however much happened.
  tell() {
    if (this.telling) return;
    this.telling = true;
    queueMicrotask(() => {
      this.telling = false;
      for (const listener of this.listeners) listener();
    });
  }

  async load() {
    const [state, images] = await Promise.all([get("/api/state"), get("/api/images?from=0")]);
    this.state = state;
    this.columns(images);
    this.seq = Math.min(state.seq, images.seq); // what happened between the two comes with the next changes
    this.tell();
    this.complete = images.scanning ? this.grow() : Promise.resolve(true);
  }

  columns(images) {
    for (const column of ["name", "label", "who", "flags", "guess", "sure"]) {
      this[column] = images.from ? this[column].concat(images[column]) : images[column];
    }
    this.version = images.version;
    this.listing = images.listing;
    this.images = images.images;
    if (images.order) this.order = images.order;
    else for (let n = this.order.length; n < this.name.length; n++) this.order.push(n);
    this.generation++;
  }

  // The folder is still being read: pictures come as they are found, and are put in order at the end.
  async grow() {
    this.growing = true;
    try {
      for (;;) {
        await new Promise((wake) => setTimeout(wake, 250));
        const more = await get(`/api/images?from=${this.name.length}`);
        if (!more.scanning) break;
        if (more.listing !== this.listing) return void this.moved();
        if (more.name.length) this.columns(more);
        this.tell();
      }
      return await this.reload();
    } catch {
      this.images = null; // the next poll fetches all of it
      return false;
    } finally {
      this.growing = false;
    }
  }

  // All pictures anew. Says whether they are there.
  reload() {
    this.reloading ??= this.fetchAll().finally(() => (this.reloading = null));
    return this.reloading;
  }

  async fetchAll() {
    this.meanwhile = [];
    try {
      const images = await get("/api/images?from=0");
      if (images.listing !== this.listing) return void this.moved();
      this.columns(images);
      // What was answered while the pictures were on their way may be newer than they are.
      const newer = this.meanwhile.filter((body) => body.seq > images.seq);
      for (const body of newer) this.put(body.pictures);
      if (newer.some((body) => body.reset)) this.images = null; // the next poll fetches all of it again
      this.seq = Math.max(images.seq, ...newer.map((body) => body.seq));
      this.tell();
      return true;
    } catch {
      this.images = null;
      return false;
    } finally {
      this.meanwhile = null;
    }
  }

  // Take in an answer of /api/changes or of a POST. An older answer that arrives late is ignored. Where the pictures are
  // others than this page's, all is read anew, also from a log that has less in it than this page was shown.
  absorb(body) {
    if (body.listing !== this.listing) return void this.moved();
    const anew = !this.growing && (body.reset || body.images !== this.images);
    if (body.seq < this.seq && !anew) return;
    this.put(body.pictures);
    this.meanwhile?.push(body);
    this.state = body;
    this.seq = body.seq;
    this.version = body.version ?? this.version;
    if (anew) this.reload();
    this.tell();
  }

  // Pictures that this page does not have yet come later, with their labels.
  put(pictures) {
    for (let i = 0; pictures && i < pictures.n.length; i++) {
      const n = pictures.n[i];
      if (n >= this.name.length) continue;
      this.label[n] = pictures.label[i];
      this.who[n] = pictures.who[i];
      this.flags[n] = pictures.flags[i];
    }
  }

  // The server has found that a file is no image. It says so to pages that come later.
  unreadable(n) {
    this.flags[n] |= UNREADABLE;
  }

  // ----------------------------------------------------------------------------------------------------- questions

  value(n) {
    return this.pending.get(n) ?? this.label[n];
  }

  class(id) {
    return this.state.classes.find((each) => each.id === id);
  }

  get classes() {
    return this.state.classes.filter((each) => !each.hidden);
  }

  // A value as people read it, and as the server does.
  text(value) {
    return value >= 0 ? (this.class(value)?.name ?? "?") : (MARK_TEXTS[value] ?? "");
  }

  wire(value) {
    return value >= 0 ? (this.class(value)?.name ?? null) : (MARKS[value] ?? null);
  }

  fromWire(text) {
    const mark = Object.keys(MARKS).find((value) => MARKS[value] === text);
    if (mark) return Number(mark);
    return this.state.classes.find((each) => each.name === text)?.id ?? UNLABELED;
  }

  // What was said once, as people read it: also of a class that has another name by now.
  said(wire) {
    const value = this.fromWire(wire);
    return value === UNLABELED ? wire : this.text(value);
  }

  // Eight colors that people with color blindness tell apart; further classes have their names alone.
  color(value) {
    if (value < 0) return value === UNLABELED ? "" : String(COLORS);
    return String(Math.min(value, COLORS));
  }

  thumb(n) {
    return `/thumb/${n}?v=${this.version}`;
  }

  image(n) {
    return `/image/${n}?v=${this.version}`;
  }

  // Counts with what is not confirmed yet.
  counts() {
    const counts = { ...this.state.counts };
    const classes = new Map(this.state.classes.map((each) => [each.id, each.labeled]));
    let exam = this.state.exam.labeled;
    const name = { [UNLABELED]: "unlabeled", [SKIP]: "skip", [NONE]: "none", [BROKEN]: "broken" };
    const add = (value, by, n) => {
      if (value < 0) counts[name[value]] += by;
      else {
        counts.labeled += by;
        if (!(this.flags[n] & (EXAM | TEST))) counts.learned += by;
        classes.set(value, (classes.get(value) ?? 0) + by);
        if (this.flags[n] & EXAM) exam += by;
      }
    };
    for (const [n, value] of this.pending) {
      if (value === this.label[n]) continue;
      add(this.label[n], -1, n);
      add(value, 1, n);
    }
    return { ...counts, classes, exam };
  }

  mine(n) {
    if (this.pending.has(n)) return true;
    return !(this.flags[n] & TAKEN_OVER) && this.state.people[this.who[n]] === this.state.who;
  }
}
