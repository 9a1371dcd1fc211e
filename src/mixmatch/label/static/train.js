// The tab Train: how good the model is by the exam alone, a run to start and to watch, and the runs there were.
import { examSize } from "./advice.js";
import { get, newId, post } from "./api.js";
import { chart } from "./chart.js";
import { button, count, differ, duration, h, number, primary, say, toast } from "./dom.js";

const BUSY = ["trial", "running", "guessing", "stopping"];
const RESUMABLE = ["stopped", "failed"];
const STATES = {
  idle: "not started",
  trial: "finding a budget that fits this machine",
  running: "training",
  guessing: "guessing the unlabeled pictures",
  stopping: "saving and stopping",
  stopped: "stopped",
  failed: "failed",
  done: "done",
};

export class TrainView {
  constructor(box, store, bench, { tab }) {
    Object.assign(this, { store, bench, tab });
    this.train = null;
    this.verdict = h("section", { class: "card", id: "verdict" });
    this.now = h("section", { class: "card", id: "now" });
    this.past = h("section", { class: "card", id: "past" });
    const onchange = () => this.auto.checked && this.setAuto(); // the next run by itself is the one that is seen here
    this.method = h("select", { id: "method", onchange });
    this.minutes = h("input", {
      type: "number",
      id: "minutes",
      min: "0.1",
      max: "10000",
      step: "any",
      value: "10",
      onchange,
    });
    this.steps = h("input", { type: "number", id: "steps", min: "1", step: "1", placeholder: "auto", onchange });
    this.every = h("input", {
      type: "number",
      id: "every",
      min: "1",
      step: "1",
      value: "20",
      "aria-label": "More labels until it trains again",
      onchange: () => this.setAuto(),
    });
    this.auto = h("input", { type: "checkbox", id: "auto", onchange: () => this.setAuto() });
    this.start = primary("Train now", () => this.begin(), { id: "start" });
    this.stop = button("Stop and save", () => this.act("/api/train/stop", {}), { id: "stop" });
    this.ending = h("div", { class: "acts", hidden: true }, this.stop);
    this.live = h("div", { class: "live" });
    this.graph = h("div", { class: "live" });
    this.other = { verdict: differ(), live: differ(), graph: differ(), past: differ() };
    this.acts = 0;
    this.form = h(
      "div",
      { class: "fields" },
      h("label", {}, "Method", this.method),
      h("label", {}, "Minutes, about", this.minutes),
      h("label", {}, "or steps", this.steps),
      this.start,
    );
    this.repeat = h("label", { class: "line" }, this.auto, "Train again when", this.every, "more are labeled");
    const again = h("div", { class: "fields" }, this.repeat);
    this.now.replaceChildren(h("h2", {}, "Train"), this.live, this.ending, this.graph, this.form, again);
    const column = h("div", {}, this.verdict, this.now, this.past);
    box.replaceChildren(column);
    document.addEventListener("visibilitychange", () => !document.hidden && this.busy() && this.poll());
  }

  busy() {
    return BUSY.includes(this.train?.state ?? this.store.state?.train.state);
  }

  open() {
    this.load();
  }

  update() {
    const { train } = this.store.state;
    if (train.state !== this.train?.state || train.changed !== this.train?.changed) this.load();
  }

  async load() {
    if (this.loading) return;
    this.loading = true;
    const { acts } = this;
    try {
      const train = await get("/api/train");
      if (acts === this.acts) this.take(train); // else it is older than what an act was answered
    } catch {
      // the bar on top says that the server is away
    }
    this.loading = false;
    this.poll();
  }

  // While something is under way, or while the server is still finding out which methods there are.
  poll() {
    clearTimeout(this.waking);
    const more = this.busy() || (this.train?.methods.length ?? 0) < 2;
    if (more && this.tab.current === "train" && !document.hidden) this.waking = setTimeout(() => this.load(), 1000);
  }

  take(train) {
    const { auto } = train;
    if (!this.train && auto.on) {
      this.minutes.value = auto.minutes ?? this.minutes.value;
      this.steps.value = auto.steps ?? "";
    }
    if (this.train && this.train.state !== train.state) say(`Training: ${STATES[train.state]}`);
    this.train = train;
    const methods = train.methods.join();
    if (this.method.dataset.methods !== methods) {
      const chosen = this.method.value || (auto.on && auto.method) || train.method || train.methods[0];
      this.method.dataset.methods = methods;
      this.method.replaceChildren(...train.methods.map((name) => h("option", { value: name }, name)));
      this.method.value = chosen;
    }
    if (document.activeElement !== this.every) this.every.value = auto.every;
    this.auto.checked = auto.on;
    this.paint();
  }

  paint() {
    const { train, store } = this;
    const busy = this.busy();
    this.form.hidden = busy;
    this.ending.hidden = !busy;
    this.stop.disabled = train.state === "stopping";
    const { exam, counts } = store.state;
    const { state, run, step, steps, seconds_left, error, curve, history } = train;
    const { other } = this;
    if (other.verdict(train.exam, exam, counts.unlabeled)) this.paintVerdict(train.exam);
    if (other.live(state, run, step, steps, seconds_left, error, this.hint())) this.paintLive(busy);
    if (other.graph(run, curve, exam)) this.paintGraph(run, curve, exam);
    if (other.past(history, busy)) this.paintPast(history);
  }

  paintLive(busy) {
    const { train } = this;
    const parts = [];
    if (busy) {
      const share = train.steps ? train.step / train.steps : 0;
      const bar = h("i");
      bar.style.width = `${100 * share}%`;
      const left =
        train.seconds_left === null || train.state !== "running" ? "" : `, about ${duration(train.seconds_left)} left`;
      const line =
        train.state === "running"
          ? train.step
            ? `${train.run}: step ${number(train.step)} of ${number(train.steps)}${left}`
            : `${train.run}: reading the pictures …`
          : `${train.run}: ${STATES[train.state]} …`;
      parts.push(
        h("p", { id: "line" }, line),
        h(
          "div",
          {
            class: "meter",
            role: "progressbar",
            "aria-label": "Training",
            "aria-valuemin": "0",
            "aria-valuemax": "100",
            "aria-valuenow": String(Math.round(100 * share)),
          },
          bar,
        ),
        h("p", { class: "soft small" }, "You can continue labeling: the run works on a copy of the labels."),
      );
    } else {
      if (train.state === "failed")
        parts.push(h("p", { class: "failed", role: "alert" }, `${train.run} failed: ${train.error}`));
      if (train.state === "stopped") parts.push(h("p", {}, this.stopped()));
      if (RESUMABLE.includes(train.state))
        parts.push(
          h(
            "div",
            { class: "acts" },
            primary(`Resume ${train.run}`, () => this.begin(train.run)),
          ),
        );
      parts.push(h("p", { class: "soft" }, this.hint()));
    }
    this.live.replaceChildren(...parts);
  }

  paintGraph(run, curve, exam) {
    this.graph.hidden = !curve.length;
    if (!curve.length) return;
    const points = curve.map((each) => ({ ...each, x: each.step }));
    const last = points.at(-1);
    const on = [exam.size && "the exam", exam.test_folder && "the test set"].filter(Boolean).join(" and ");
    this.graph.replaceChildren(
      h("h3", {}, `Error on ${on} while ${run} trains, with its 95 % interval`),
      chart(points, { label: `Error over steps, ${last.error.toFixed(1)} % at step ${last.step}`, name: number }),
    );
  }

  stopped() {
    const { run, step, steps } = this.train;
    const where = steps ? `at step ${number(step)} of ${number(steps)}` : "before its first step";
    return `${run} was stopped ${where}. Nothing is lost.`;
  }

  hint() {
    const { train, store } = this;
    const { learned, exam } = store.counts();
    if (!train.history.length)
      return learned
        ? `${count(learned, "label")} to learn from${exam ? ", beside the exam" : ""}; at least two classes with two labels each are needed, and ten per class are a good start.`
        : "Label some pictures first: at least two classes with two labels each are needed.";
    return train.changed
      ? `${count(train.changed, "label")} given since the last run.`
      : "No label was given since the last run.";
  }

  paintVerdict(exam) {
    const { state } = this.store;
    const act = (name, run, kind = primary) => h("div", { class: "acts" }, kind(name, run));
    const title = h("h2", {}, "How good is it?");
    if (exam) {
      const text = `${exam.run} is wrong on ${exam.wrong} of the ${count(exam.n, "exam picture")}. The interval says where the error on the whole folder is likely to be: the exam was drawn at random and labeled without seeing a guess.`;
      const wide = exam.high - exam.low > 8 ? act("Draw 50 more exam pictures", () => this.tab.exam(50), button) : "";
      const { unlabeled, learned } = state.counts;
      const late = `They are drawn from the ${count(unlabeled, "picture")} without a label. If the easy ones have theirs already, these are harder than the whole folder.`;
      return this.verdict.replaceChildren(
        title,
        h(
          "div",
          { class: "numbers" },
          h(
            "div",
            {},
            h("b", { class: "model", id: "error" }, `${exam.error.toFixed(1)} %`),
            h("span", { class: "soft small" }, "error"),
          ),
          h(
            "div",
            {},
            h("b", {}, `${exam.low.toFixed(1)} to ${exam.high.toFixed(1)} %`),
            h("span", { class: "soft small" }, "95 % interval"),
          ),
        ),
        h("p", {}, text),
        wide,
        wide && learned > unlabeled / 10 ? h("p", { class: "soft small" }, late) : "",
      );
    }
    const { size, left, test_folder } = state.exam;
    const possible = examSize(state.counts);
    const tested = `The report of a run has its error on the test set, ${count(test_folder, "picture")}. An exam, pictures drawn at random and labeled without help, measures the error on the rest of the folder.`;
    const unknown =
      "Nobody can say yet. An exam, pictures drawn at random and labeled without help, measures the error. Labels that were picked by hand or by a model cannot: they are no sample of the folder.";
    if (!size)
      return this.verdict.replaceChildren(
        title,
        h("p", {}, test_folder ? tested : unknown),
        possible
          ? act("Make an exam", () => this.tab.exam(possible))
          : h("p", { class: "soft" }, "Too few pictures without a label are left for an exam."),
      );
    if (left)
      return this.verdict.replaceChildren(
        title,
        h(
          "p",
          {},
          `The exam still lacks ${number(left)} of its ${count(size, "picture")}. Complete it: then every run is measured by it.`,
        ),
        act("Continue the exam", () => this.tab.open("label", "exam")),
      );
    this.verdict.replaceChildren(
      title,
      h("p", {}, "The exam is complete. The first finished run will be measured by it."),
    );
  }

  paintPast(history) {
    this.past.hidden = !history.length;
    if (this.past.hidden) return;
    const measured = [...history].reverse().filter((run) => run.exam);
    const rows = history.map((run) =>
      h(
        "tr",
        {},
        h("td", {}, run.run),
        h("td", {}, run.method),
        h("td", { class: "num" }, number(run.labels)),
        h("td", { class: "num" }, number(run.steps)),
        h(
          "td",
          { class: "num" },
          run.exam ? `${run.exam.error.toFixed(1)} % (${run.exam.low.toFixed(1)} to ${run.exam.high.toFixed(1)})` : "–",
        ),
        h(
          "td",
          {},
          run.report
            ? h(
                "a",
                { href: `/api/report/${encodeURIComponent(run.run)}`, target: "_blank", rel: "noopener" },
                "report",
              )
            : RESUMABLE.includes(run.state) && !this.busy()
              ? button("resume", () => this.begin(run.run), { class: "plain small" })
              : (STATES[run.state] ?? run.state),
        ),
      ),
    );
    const head = [["run"], ["method"], ["labels", "num"], ["steps", "num"], ["error on the exam", "num"], [""]];
    this.past.replaceChildren(
      h("h2", {}, "Runs"),
      measured.length > 1
        ? chart(
            measured.map((run) => ({ x: run.labels, ...run.exam })).sort((a, b) => a.x - b.x),
            { label: "Error on the exam over the number of labels", unit: "labels", name: number },
          )
        : "",
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          {},
          h(
            "thead",
            {},
            h("tr", {}, ...head.map(([text, kind]) => h("th", { scope: "col", class: kind ?? "" }, text))),
          ),
          h("tbody", {}, ...rows),
        ),
      ),
    );
  }

  async begin(resume) {
    const wanted = { id: newId(), method: this.method.value || undefined };
    const steps = Number(this.steps.value);
    if (steps) wanted.steps = steps;
    else if (Number(this.minutes.value)) wanted.minutes = Number(this.minutes.value);
    this.start.disabled = true;
    await this.bench.outbox.flush().then(
      () => this.act("/api/train", resume ? { id: newId(), resume } : wanted),
      (refused) => toast(refused.message),
    );
    this.start.disabled = false;
  }

  setAuto() {
    const steps = Number(this.steps.value);
    const budget = steps ? { steps } : { minutes: Number(this.minutes.value) || undefined };
    this.act("/api/train/auto", {
      on: this.auto.checked,
      every: Math.max(1, Number(this.every.value) || 20),
      method: this.method.value || undefined,
      ...budget,
    });
  }

  async act(path, body) {
    try {
      const train = await post(path, body);
      this.acts++;
      this.take(train);
    } catch (refused) {
      toast(refused.message);
    }
    this.poll();
  }
}
