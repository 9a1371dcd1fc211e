"""The report as one HTML file: no script, nothing loaded from anywhere, readable on a phone, by day and by night."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image

from mixmatch.data.user.images import visible
from mixmatch.report import measure, svg
from mixmatch.report.gather import SHOWN, Judged, Report, Shown, Unlabeled
from mixmatch.report.svg import Series
from mixmatch.text import count, duration
from mixmatch.training.evaluate import REPORTED
from mixmatch.training.run import Record

MOST_CLASSES = 12
"""Rows of the confusion matrix: more do not fit a phone."""

TABLE_ROWS = 20
"""Rows of the table of classes before the rest is folded away."""

THUMBNAIL = 96
"""Pixels; larger images are made smaller."""

CURVES = {
    "confidence": "confidence of the guesses",
    "loss": "loss, all together",
    "loss_x": "loss of the labeled images",
    "loss_u": "loss of the unlabeled images",
    "entropy": "entropy of the predictions",
}

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --card: #f6f7f8; --ink: #1b1f24; --soft: #59626d; --rule: #d9dee3;
  --model: #0b62a8; --baseline: #b04a00; --good: #0a7a4b; --model-rgb: 11 98 168; --bad-rgb: 213 94 0; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171a; --card: #1d2125; --ink: #e8eaed; --soft: #a3acb6; --rule: #363c43;
    --model: #6cb6f5; --baseline: #f59b57; --good: #4fcf97; --model-rgb: 80 160 235; --bad-rgb: 240 125 40; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: anywhere;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 1rem 1rem 3rem; }
h1, h2 { line-height: 1.25; margin: 0; text-wrap: balance; }
h1 { font-size: 1.05rem; font-weight: 600; color: var(--soft); }
h2 { font-size: 1.15rem; font-weight: 650; }
p { margin: .4rem 0; max-width: 44rem; }
.soft, figcaption, caption { color: var(--soft); font-size: .875rem; }
.verdict { margin: .75rem 0 1.5rem; }
.verdict > p:first-child { font-size: 1.2rem; line-height: 1.4; }
.numbers { display: flex; flex-wrap: wrap; gap: .5rem 2.25rem; align-items: end; margin: 1rem 0 .25rem; }
.numbers > div { line-height: 1.2; }
.numbers b { display: block; font-size: 2.1rem; font-weight: 650; font-variant-numeric: tabular-nums; }
.numbers .interval { flex: 1 1 16rem; max-width: 26rem; }
b.model { color: var(--model); } b.baseline { color: var(--baseline); }
.grid { display: grid; gap: 1rem; grid-template-columns: minmax(0, 1fr); }
section { background: var(--card); border-radius: .6rem; padding: .9rem 1rem 1rem; min-width: 0; }
@media (min-width: 56rem) { .grid { grid-template-columns: repeat(2, minmax(0, 1fr)); } .wide { grid-column: 1 / -1; }
  main { padding: 2rem 2rem 4rem; } section { padding: 1.1rem 1.35rem 1.35rem; } .verdict > p:first-child {
  font-size: 1.4rem; } }
figure { margin: .5rem 0 0; }
svg { display: block; width: 100%; max-width: 34rem; height: auto; overflow: visible; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--soft);
  font-variant-numeric: tabular-nums; }
svg text.name { font-weight: 600; } svg text.model { fill: var(--model); } svg text.baseline { fill: var(--baseline); }
svg .grid { stroke: var(--rule); stroke-width: 1; } svg .axis { stroke: var(--soft); stroke-width: 1; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .line.model { stroke: var(--model); } svg .line.baseline { stroke: var(--baseline); stroke-dasharray: 6 3; }
svg .dot.model { fill: var(--model); } svg .dot.baseline { fill: var(--baseline); }
svg rect.model { fill: var(--model); } svg rect.quiet { fill: var(--soft); }
svg rect.over { fill: rgb(var(--bad-rgb) / .45); stroke: var(--baseline); stroke-width: 1; }
svg rect.under { fill: rgb(var(--model-rgb) / .15); stroke: var(--model); stroke-width: 1; }
svg .ideal { stroke: var(--ink); stroke-width: 1.25; stroke-dasharray: 3 3; }
svg .span { stroke-width: 4; stroke-linecap: round; } svg .span.good { stroke: var(--good); }
svg .dot.good { fill: var(--good); } svg .span.bad { stroke: var(--baseline); } svg .dot.bad { fill: var(--baseline); }
svg .span.even { stroke: var(--soft); } svg .dot.even { fill: var(--soft); }
.three { display: grid; gap: .75rem 1.5rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 14rem), 1fr)); }
.three svg { max-width: 18rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .875rem; }
th { font-weight: 600; text-align: left; }
.scores { width: 100%; margin-top: .5rem; }
.scores th, .scores td { padding: .28rem .3rem; border-bottom: 1px solid var(--rule); vertical-align: baseline; }
.scores td { text-align: right; white-space: nowrap; }
.scores thead th { color: var(--soft); text-align: right; overflow-wrap: normal; vertical-align: bottom; }
.scores thead th:first-child { text-align: left; }
@media (max-width: 30rem) { .scores .spare { display: none; } section { padding: .8rem .8rem .9rem; } }
.scores tbody th { font-weight: 500; min-width: 3.5rem; }
.bar { position: relative; } .bar i { position: absolute; right: .3rem; bottom: 0; height: 3px;
  background: rgb(var(--bad-rgb)); border-radius: 2px 2px 0 0; }
.confusion { margin-top: .5rem; }
.confusion td { min-width: 1.72rem; height: 1.72rem; padding: 0 .15rem; text-align: center;
  border: 1px solid var(--card); border-radius: 3px; }
@media (min-width: 56rem) { .confusion td { min-width: 2.15rem; height: 2rem; } }
.confusion td.zero { color: var(--soft); opacity: .55; }
.confusion th { padding: .1rem .4rem .1rem 0; font-weight: 500; text-align: right; }
.confusion tbody th { position: sticky; left: 0; background: var(--card); max-width: 6.5rem; overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; }
.confusion thead th { text-align: center; vertical-align: bottom; padding: .1rem 0 .25rem; }
.confusion thead th.long span { writing-mode: vertical-rl; transform: rotate(180deg); max-height: 8rem;
  display: inline-block; overflow: hidden; text-align: left; white-space: nowrap; }
.thumbs { display: grid; gap: .9rem .8rem; margin: .75rem 0 0; padding: 0; list-style: none;
  grid-template-columns: repeat(auto-fill, minmax(6.3rem, 1fr)); }
.thumbs img { display: block; width: 100%; max-width: 6.5rem; aspect-ratio: 1; object-fit: contain;
  border-radius: .3rem; background: #000; }
.thumbs img.tiny { image-rendering: pixelated; }
.thumbs div { font-size: .8rem; line-height: 1.3; margin-top: .25rem; } .thumbs .file { color: var(--soft); }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; vertical-align: -.06em; }
.key.model { background: var(--model); } .key.over { background: rgb(var(--bad-rgb) / .45);
  border: 1px solid var(--baseline); } .key.under { background: rgb(var(--model-rgb) / .15);
  border: 1px solid var(--model); }
details { margin-top: .75rem; } summary { cursor: pointer; }
.settings th, .settings td { padding: .15rem 1.25rem .15rem 0; font-weight: 400; vertical-align: top; }
.settings th { color: var(--soft); white-space: nowrap; }
@media print { section { break-inside: avoid; } }
"""


def render(report: Report) -> str:
    """The whole page."""
    record, judged = report.record, report.judged
    labeled, unlabeled = record["split"]["labeled"], record["split"]["unlabeled"]
    data = Path(record["data"]).resolve().name if report.own else record["data"]
    about = f"{data}: {record['method']}, {count(labeled, 'label')}, {count(unlabeled, f'unlabeled {report.noun}')}"
    sections = [
        *(
            [_errors(report), _confusion(report, judged), _classes(report, judged), _calibration(report, judged)]
            if judged
            else []
        ),
        _guesses(report),
        *([_mistakes(report, judged)] if judged else []),
        _worth(report, report.unlabeled),
        _settings(report),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(about)}</title>\n<meta name="description" content="{escape(report.verdict)}">\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(about)}</h1>\n{_verdict(report)}\n"
        f'<div class="grid">\n{"".join(s + chr(10) for s in sections if s)}</div>\n</main>\n</body>\n</html>\n'
    )


# ------------------------------------------------------------------------------------------------------------ sections


def _verdict(report: Report) -> str:
    headline, colon, rest = _unbroken(report.verdict).partition(": ")
    parts = [f"<p><strong>{escape(headline)}</strong>{colon}{escape(rest)}</p>"]
    brought, judged = report.gain, report.judged
    if brought is not None:
        label = f"difference {brought.baseline - brought.error:+.1f} points, {brought.low:+.1f} to {brought.high:+.1f}"
        method = escape(str(report.record["method"]))
        parts.append(
            '<div class="numbers">'
            f'<div><b class="model">{brought.error:.1f} %</b><span class="soft">test error, {method}</span></div>'
            f'<div><b class="baseline">{brought.baseline:.1f} %</b><span class="soft">labels alone</span></div>'
            f'<div class="interval">{svg.interval(brought.low, brought.high, brought.baseline - brought.error, label)}'
            f'<span class="soft">error saved by the unlabeled {report.noun}s, with its 95&nbsp;% interval</span></div>'
            "</div>"
        )
    elif judged is None:
        parts.append(
            f'<p class="soft">Without test {report.noun}s there are no errors, confusions or calibration to show. What '
            f"follows is what training saw, and which {report.noun}s to label next.</p>"
        )
    else:
        basis = f"It is {report.basis}."
        alone = (
            ""
            if report.record["method"].startswith("supervised")
            else " This run has no baseline beside it, so what the unlabeled data brought cannot be told."
        )
        parts.append(f'<p class="soft">{escape(basis + alone)}</p>')
    return f'<div class="verdict">{"".join(parts)}</div>'


def _errors(report: Report) -> str:
    series = []
    for metrics, name, style in (
        (report.baseline, "labels alone", "baseline"),
        (report.metrics, report.record["method"], "model"),
    ):
        points = _points(metrics, "test_error")
        if points:
            series.append(Series(name, points, style, f"{points[-1][1]:.1f} %"))
    if not series:
        return ""
    record = report.record
    told = ", ".join(f"{s.name} ends at {s.value}" for s in series)
    if record["median_of"] == REPORTED:
        of = f"the last {REPORTED} evaluations, the number the paper reports,"
    else:
        of = f"all {record['median_of']} evaluations"
    median = f"The median of {of} is {record['error']:.2f} %." if record["median_of"] > 1 else ""
    chart = svg.line_chart(series, f"Test error over steps: {told}", height=270, unit="%")
    return _section("Test error over steps", f"<figure>{chart}</figure>", note=median)


def _confusion(report: Report, judged: Judged) -> str:
    counts, classes = judged.confusion, report.classes
    kept = measure.most_confused(counts, MOST_CLASSES)
    worst = ", ".join(f"{classes[t]} for {classes[p]} ({n:,}×)" for t, p, n in measure.top_mistakes(counts, 3))
    note = "Rows are the true classes, columns the predicted ones. "
    note += f"Most often taken: {worst}." if worst else "There is no mistake at all."
    if len(kept) < len(classes):
        inside = int(counts[np.ix_(kept, kept)].sum() - counts[kept, kept].sum())
        note += (
            f" Only {len(kept)} of the {len(classes)} classes are shown, those most often taken for one another: "
            f"{inside:,} of the {judged.wrong:,} mistakes."
        )
    long = ' class="long"' if max(len(classes[c]) for c in kept) > 3 else ""
    head = "".join(f'<th scope="col"{long}><span>{escape(_short(classes[c]))}</span></th>' for c in kept)
    rows = "".join(
        f'<tr><th scope="row" title="{escape(classes[t])}">{escape(_short(classes[t]))}</th>'
        + "".join(_cell(counts, int(t), int(p)) for p in kept)
        + "</tr>"
        for t in kept
    )
    table = (
        '<div class="scroll"><table class="confusion">'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
    return _section("What is taken for what", table, note=note)


def _cell(counts: measure.Ints, true: int, predicted: int) -> str:
    n, total = int(counts[true, predicted]), int(counts[true].sum())
    if n == 0:
        return '<td class="zero">·</td>'
    share = n / total
    color, strength = ("model", 0.12 + 0.28 * share) if true == predicted else ("bad", min(0.75, 0.2 + 1.6 * share))
    return f'<td style="background:rgb(var(--{color}-rgb) / {strength:.2f})">{n:,}</td>'


def _classes(report: Report, judged: Judged) -> str:
    order = sorted(range(len(report.classes)), key=lambda c: -(judged.scores[c].error or 0.0))
    worst = max((s.error or 0.0 for s in judged.scores), default=0.0) or 1.0
    rows = []
    for c in order:
        s = judged.scores[c]
        bar = f'{_percent(s.error)}<i style="width:{90 * (s.error or 0) / worst:.1f}%"></i>'
        rows.append(
            f'<tr><th scope="row">{escape(report.classes[c])}</th><td class="spare">{report.labels[c]:,}</td>'
            f'<td>{s.images:,}</td><td class="bar">{bar}</td><td>{_percent(s.precision)}</td>'
            f"<td>{_percent(s.recall)}</td></tr>"
        )
    head = '<th scope="col">class</th><th scope="col" class="spare">labels</th>' + "".join(
        f'<th scope="col">{name}</th>' for name in (f"{report.noun}s", "error", "precision", "recall")
    )

    def table(part: Sequence[str]) -> str:
        return (
            f'<div class="scroll"><table class="scores"><thead><tr>{head}</tr></thead>'
            f"<tbody>{''.join(part)}</tbody></table></div>"
        )

    body = table(rows[:TABLE_ROWS])
    if len(rows) > TABLE_ROWS:
        others = f"<summary>the other {len(rows) - TABLE_ROWS} classes</summary>"
        body += f"<details>{others}{table(rows[TABLE_ROWS:])}</details>"
    note = (
        f"In percent of the test {report.noun}s, worst first. Precision: of the {report.noun}s given this class, how "
        f"many are of it. Recall: of its {report.noun}s, how many are found."
    )
    return _section("Class by class", body, note=note)


def _calibration(report: Report, judged: Judged) -> str:
    found = judged.calibration
    apart = 100 * (found.confidence - found.accuracy)
    if abs(apart) < 1:
        sense = "On the whole its confidence is about right."
    else:
        sense = (
            f"On the whole it is {abs(apart):.1f} points {'too sure' if apart > 0 else 'less sure than it is right'}."
        )
    note = (
        f"Expected calibration error {100 * found.error:.1f} % ({measure.BINS} bins of equal width): how far, on "
        f"average, the confidence of a prediction is from how often such predictions are right. {sense}"
    )
    told = f"Reliability diagram, expected calibration error {100 * found.error:.1f} %"
    chart = svg.reliability(found.bins, told, noun=report.noun)
    key = (
        '<figcaption><span class="key model"></span> right, as expected &nbsp; <span class="key over"></span> too sure '
        '&nbsp; <span class="key under"></span> right more often than it thinks. On the dashed line it is as sure as '
        "it is right.</figcaption>"
    )
    return _section("Is it as sure as it is right?", f"<figure>{chart}{key}</figure>", note=note)


def _guesses(report: Report) -> str:
    apart = ("step", "seconds", "test_error", "test_loss", "valid_error", "valid_loss")
    names = dict.fromkeys(name for m in report.metrics for name in m if name not in apart)
    ordered = sorted(names, key=lambda name: (list(CURVES).index(name) if name in CURVES else len(CURVES), name))
    charts = []
    for name in ordered:
        points = _points(report.metrics, name)
        if points:
            title = CURVES.get(name, name).replace("image", report.noun)
            top = 1.0 if name == "confidence" else None
            last = Series(f"{points[-1][1]:.3g}", points, "model")
            chart = svg.line_chart([last], f"{title}, over steps", width=270, height=165, top=top)
            charts.append(f"<figure><figcaption>{escape(title)}</figcaption>{chart}</figure>")
    if not charts:
        return ""
    if "confidence" in names:
        title = f"The guesses for unlabeled {report.noun}s, and the losses"
        note = "Confidence is the mean of the largest probability of each guess; 1 is sure, not necessarily right."
    else:
        title, note = "The loss", f"The method {report.record['method']} guesses no labels."
    right = report.unlabeled.right
    if right is not None:
        note += (
            f" At the end {right:.1f} % of the unlabeled {report.noun}s {_looked_at(report.unlabeled)}are predicted "
            "right: this data set knows their classes, training did not."
        )
    return _section(title, f'<div class="three">{"".join(charts)}</div>', note=note, wide=True)


def _mistakes(report: Report, judged: Judged) -> str:
    if not judged.mistakes:
        return _section(
            "Most confident mistakes", "", note=f"There are none: every test {report.noun} is right.", wide=True
        )
    what = "file" if report.own else "row"
    note = f"The surest first, {len(judged.mistakes):,} of {judged.wrong:,}. A label may be wrong, too."
    items = (
        f"{_thumbnail(s, report.own)}<div>said <b>{escape(s.predicted)}</b> {_sure(s.probability)}<br>"
        f'is <b>{escape(s.true or "")}</b><br><span class="file">{_file(s, what)}</span></div>'
        for s in judged.mistakes
    )
    return _section("Most confident mistakes", _list(items), note=note, wide=True)


def _worth(report: Report, unlabeled: Unlabeled) -> str:
    title = "Worth labeling next"
    if not unlabeled.worth:
        return _section(title, "", note=f"There are no unlabeled {report.noun}s.", wide=True)
    what = "file" if report.own else "row"
    shown = unlabeled.worth[:SHOWN]
    note = (
        f"Unlabeled {report.noun}s {_looked_at(unlabeled)}that the model is unsure of and that differ from one "
        "another, so that no two teach the same. Uncertainty is the entropy of the prediction: 0 is certain, 100 no "
        "idea. "
    )
    if len(unlabeled.worth) > len(shown):
        note += f"These are the first {len(shown)} of {len(unlabeled.worth)} in label-next.csv."
    else:
        note += "They are listed in label-next.csv."
    items = (
        f"{_thumbnail(s, report.own)}<div><b>{escape(s.predicted)}?</b> {_sure(s.probability)}<br>"
        f'uncertainty {100 * (s.score or 0):.0f}<br><span class="file">{_file(s, what)}</span></div>'
        for s in shown
    )
    return _section(title, _list(items), note=note, wide=True)


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _settings(report: Report) -> str:
    record = report.record
    settings = dict(record["settings"])
    of_method, of_data = settings.pop("method_settings", {}), settings.pop("data_options", {})
    hardware = dict(record["hardware"])
    if "machines" in hardware:
        hardware["machines"] = ", ".join(f"{m['name']} from step {m['from_step']:,}" for m in hardware["machines"])
    rows = [
        ("run", str(report.run)),
        *settings.items(),
        *of_method.items(),
        *of_data.items(),
        *((f"{part} {report.noun}s", f"{n:,}") for part, n in record["split"].items() if part != "hash"),
        ("split", record["split"]["hash"]),
        ("trained for", duration(record["seconds"])),
        *hardware.items(),
        *record["versions"].items(),
    ]
    body = "".join(
        f'<tr><th scope="row">{escape(str(name).replace("_", " "))}</th><td>{escape(_plain(value))}</td></tr>'
        for name, value in rows
        if value not in (None, "")
    )
    return (
        '<section class="wide"><details><summary>Settings and hardware</summary><div class="scroll">'
        f'<table class="settings"><tbody>{body}</tbody></table></div></details></section>'
    )


# -------------------------------------------------------------------------------------------------------------- pieces


def _section(title: str, body: str, note: str = "", wide: bool = False) -> str:
    said = f'<p class="soft">{escape(_unbroken(note))}</p>' if note else ""
    kind = ' class="wide"' if wide else ""
    return f"<section{kind}><h2>{escape(title)}</h2>{said}{body}</section>"


def _unbroken(text: str) -> str:
    """Numbers stay with their percent sign."""
    return text.replace(" %", "\u00a0%")


def _points(metrics: Sequence[Record], name: str) -> list[tuple[float, float]]:
    return [(float(m["step"]), float(m[name])) for m in metrics if isinstance(m.get(name), (int, float))]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _sure(probability: float) -> str:
    """Never 100 %: a mistake was not certain, it was rounded."""
    return ">99.9\u00a0%" if probability > 0.9995 else f"{100 * probability:.1f}\u00a0%"


def _file(shown: Shown, what: str) -> str:
    return escape(shown.name if what == "file" else f"{what} {shown.name}")


def _looked_at(unlabeled: Unlabeled) -> str:
    if unlabeled.looked_at == unlabeled.total:
        return ""
    return f"(a random {unlabeled.looked_at:,} of the {unlabeled.total:,}) "


def _short(name: str, most: int = 18) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _list(items: Iterable[str]) -> str:
    return f'<ul class="thumbs">{"".join(f"<li>{item}</li>" for item in items)}</ul>'


def _thumbnail(shown: Shown, own: bool) -> str:
    if shown.pixels is None:
        return ""
    height, width = shown.pixels.shape[:2]
    tiny = ' class="tiny"' if max(height, width) <= 32 else ""
    alt = shown.name if own else f"row {shown.name}"
    return f'<img{tiny} src="{data_uri(shown.pixels)}" alt="{escape(alt)}">'


def data_uri(pixels: np.ndarray) -> str:
    """An image (H, W, C) as part of a page: small ones exactly, larger ones reduced and as JPEG."""
    image = Image.fromarray(visible(pixels))
    out = io.BytesIO()
    if max(image.size) <= 32:
        image.save(out, "PNG", optimize=True)
        kind = "png"
    else:
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        image.save(out, "JPEG", quality=85)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode()}"
