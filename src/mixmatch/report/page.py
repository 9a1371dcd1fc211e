"""The report as one HTML file: no script, nothing loaded from elsewhere, readable on a phone, light or dark."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import numpy as np
from PIL import Image

from mixmatch import measure
from mixmatch.data.user.images import visible
from mixmatch.report import svg
from mixmatch.report.gather import SHOWN, THUMBNAIL, Evaluated, NoClass, Report, Shown, Unlabeled
from mixmatch.report.svg import Series
from mixmatch.text import count, duration
from mixmatch.training.evaluate import REPORTED
from mixmatch.training.gain import Gain
from mixmatch.training.run import Record

MOST_CLASSES = 12
"""Rows of the confusion matrix: more do not fit a phone."""

TABLE_ROWS = 20
"""Rows of the table of classes before the rest is folded away."""

NOT_OF_THE_METHOD = ("step", "seconds", "test_error", "test_loss", "valid_error", "valid_loss")
"""What every evaluation records; its other metrics are the method's."""

CURVES = {
    "confidence": "confidence of the guesses",
    "loss": "total loss",
    "loss_x": "loss of the labeled images",
    "loss_u": "loss of the unlabeled images",
    "entropy": "entropy of the predictions",
    "guess_share": "share of the commonest guess",
}

STYLE = files("mixmatch.report").joinpath("style.css").read_text(encoding="utf-8")


def render(report: Report) -> str:
    """The whole page."""
    record, evaluated = report.record, report.evaluated
    labeled, unlabeled = record["split"]["labeled"], record["split"]["unlabeled"]
    data = Path(record["data"]).resolve().name if report.user_data else record["data"]
    about = f"{data}: {_method(report)}, {count(labeled, 'label')}, {count(unlabeled, f'unlabeled {report.noun}')}"
    sections = [
        _errors(report),
        *(part(report, evaluated) for part in (_confusion, _classes, _calibration) if evaluated),
        _training(report),
        _mistakes(report, evaluated) if evaluated and not report.verdict.cross_validated else "",
        _suspects(report, report.suspects) if report.suspects is not None else "",
        _suggestions(report, report.unlabeled),
        _no_class(report, report.unlabeled.no_class) if report.unlabeled.no_class is not None else "",
        _settings(report),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(about)}</title>\n<meta name="description" content="{escape(report.verdict.how_good)}">\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(about)}</h1>\n{_verdict(report)}\n"
        f'<div class="grid">\n{"".join(s + chr(10) for s in sections if s)}</div>\n</main>\n</body>\n</html>\n'
    )


# ------------------------------------------------------------------------------------------------------------ sections


QUESTIONS = {
    "how good": "How good is it?",
    "trust": "Can that be trusted?",
    "unlabeled": "Did the unlabeled data help?",
}


def _verdict(report: Report) -> str:
    """How good, can it be trusted, did the unlabeled data help, what next: each with its answer."""
    verdict = report.verdict
    answers = [
        f"<h2>{QUESTIONS[name]}</h2>"
        + (_numbers(report) if name == "how good" else f"<p>{escape(_unbroken(text))}</p>")
        + (_gain(report.gain, report.noun) if name == "unlabeled" and report.gain is not None else "")
        for name, text in verdict.parts
    ]
    steps = "".join(f"<li>{escape(_unbroken(step))}</li>" for step in verdict.next_steps)
    return f'<div class="verdict">{"".join(answers)}<h2>What next?</h2><ol>{steps}</ol></div>'


def _numbers(report: Report) -> str:
    """The error, large, beside those of guessing and of the labels alone."""
    verdict = report.verdict
    sentence = f"<p>{escape(_unbroken(verdict.measured))}</p>"
    if verdict.error is None:
        return sentence
    how = "in cross-validation" if verdict.cross_validated else f"test error, {_method(report)}"
    numbers = [(verdict.error, how, "model"), (verdict.guessing, "guessing", "quiet")]
    if verdict.gain is not None:
        numbers.append((verdict.gain.baseline, "labels alone", "baseline"))
    cells = (
        f'<b class="{style}">{_unbroken(verdict.percent(error))}</b> <span class="soft">{escape(name)}</span>'
        for error, name, style in numbers
    )
    return f'<div class="numbers">{"".join(f"<div>{cell}</div>" for cell in cells)}</div>{sentence}'


def _gain(gain: Gain, noun: str) -> str:
    label = f"difference {gain.points:+.1f} points, {gain.low:+.1f} to {gain.high:+.1f}"
    return (
        f'<div class="interval">{svg.interval(gain.low, gain.high, gain.points, label)}'
        f'<span class="soft">error saved by the unlabeled {noun}s, with its 95&nbsp;% interval</span></div>'
    )


def _errors(report: Report) -> str:
    """The curve ends at the verdict's number: training may have evaluated in another precision."""
    series = []
    ours, verdict = _short(_method(report)), report.verdict
    ends = {"model": verdict.error, "baseline": None if verdict.gain is None else verdict.gain.baseline}
    for metrics, name, style in ((report.baseline, "labels alone", "baseline"), (report.metrics, ours, "model")):
        if points := _points(metrics, "test_error"):
            end = ends[style]
            if end is not None:
                points[-1] = (points[-1][0], end)
            series.append(Series(name, points, style, verdict.percent(points[-1][1])))
    if not series:
        return ""
    record, note = report.record, ""
    if not report.user_data and record["median_of"] == REPORTED:  # of a shorter run it is of the first ones too
        of = f"the last {REPORTED} evaluations, the number the paper reports,"
        note = f"The median of {of} is {record['error']:.2f} %."
    label = f"Test error over steps: {', '.join(f'{s.name} ends at {s.value}' for s in series)}"
    chart = svg.line_chart(series, label, height=270, unit="%")
    return _section("Test error over steps", f"<figure>{chart}</figure>", note=note)


def _confusion(report: Report, evaluated: Evaluated) -> str:
    counts, classes = evaluated.confusion, report.classes
    kept = measure.most_confused(counts, MOST_CLASSES)
    worst = ", ".join(f"{classes[t]} taken for {classes[p]} ({n:,}×)" for t, p, n in measure.top_mistakes(counts, 3))
    note = "Rows are the true classes, columns the predicted ones. "
    note += f"The most frequent mistakes: {worst}." if worst else "There are no mistakes."
    if len(kept) < len(classes):
        inside = int(counts[np.ix_(kept, kept)].sum() - counts[kept, kept].sum())
        note += (
            f" Only {len(kept)} of the {len(classes)} classes are shown, those most often confused: "
            f"{inside:,} of the {evaluated.wrong:,} mistakes."
        )
    long = ' class="long"' if max(len(classes[c]) for c in kept) > 3 else ""
    head = "".join(f'<th scope="col"{long}><span>{escape(_short(classes[c]))}</span></th>' for c in kept)
    rows = (
        f'<tr><th scope="row" title="{escape(classes[t])}">{escape(_short(classes[t]))}</th>'
        + "".join(_cell(counts, int(t), int(p)) for p in kept)
        + "</tr>"
        for t in kept
    )
    return _section("Confusion matrix", _table("confusion", rows, f"<td></td>{head}"), note=note)


def _cell(counts: measure.Ints, true: int, predicted: int) -> str:
    n, total = int(counts[true, predicted]), int(counts[true].sum())
    if n == 0:
        return '<td class="zero">·</td>'
    share = n / total
    color, strength = ("model", 0.12 + 0.28 * share) if true == predicted else ("bad", min(0.75, 0.2 + 1.6 * share))
    return f'<td style="background:rgb(var(--{color}-rgb) / {strength:.2f})">{n:,}</td>'


def _classes(report: Report, evaluated: Evaluated) -> str:
    order = sorted(range(len(report.classes)), key=lambda c: -(evaluated.scores[c].error or 0.0))
    worst = max((s.error or 0.0 for s in evaluated.scores), default=0.0) or 1.0
    rows = []
    for c in order:
        s = evaluated.scores[c]
        bar = f'{_percent(s.error)}<i style="width:{90 * (s.error or 0) / worst:.1f}%"></i>'
        rows.append(
            f'<tr><th scope="row">{escape(report.classes[c])}</th><td class="spare">{report.labels[c]:,}</td>'
            f'<td>{s.images:,}</td><td class="bar">{bar}</td><td>{_percent(s.precision)}</td>'
            f"<td>{_percent(s.recall)}</td></tr>"
        )
    head = '<th scope="col">class</th><th scope="col" class="spare">labels</th>' + "".join(
        f'<th scope="col">{name}</th>' for name in (f"{report.noun}s", "error", "precision", "recall")
    )
    body = _table("scores", rows[:TABLE_ROWS], head)
    if len(rows) > TABLE_ROWS:
        others = f"<summary>the other {len(rows) - TABLE_ROWS} classes</summary>"
        body += f"<details>{others}{_table('scores', rows[TABLE_ROWS:], head)}</details>"
    kind = "labeled" if report.verdict.cross_validated else "test"
    note = (
        f"In percent of the {kind} {report.noun}s, worst first. Precision: of the {report.noun}s predicted as a class, "
        f"how many belong to it. Recall: of the {report.noun}s of a class, how many are found."
    )
    return _section("Class by class", body, note=note)


def _calibration(report: Report, evaluated: Evaluated) -> str:
    found = evaluated.calibration
    apart = 100 * (found.confidence - found.accuracy)
    sense = "On the whole its confidence is about right."
    if abs(apart) >= 1:
        way = "too sure" if apart > 0 else "less sure than it is right"
        sense = f"On the whole it is {abs(apart):.1f} points {way}."
    note = (
        f"Expected calibration error {100 * found.error:.1f} % ({measure.BINS} bins of equal width): how far, on "
        f"average, the confidence of a prediction is from how often such predictions are right. {sense}"
    )
    label = f"Reliability diagram, expected calibration error {100 * found.error:.1f} %"
    chart = svg.reliability(found.bins, label, noun=report.noun)
    key = (
        '<figcaption><span class="key model"></span> right, as expected &nbsp; <span class="key over"></span> too sure '
        '&nbsp; <span class="key under"></span> right more often than it thinks. On the dashed line it is as sure as '
        "it is right.</figcaption>"
    )
    return _section("Calibration: is it as sure as it is right?", f"<figure>{chart}{key}</figure>", note=note)


def _training(report: Report) -> str:
    """Charts of every metric of the method, whatever it is called."""
    names = dict.fromkeys(name for m in report.metrics for name in m if name not in NOT_OF_THE_METHOD)
    ordered = sorted(names, key=lambda name: (list(CURVES).index(name) if name in CURVES else len(CURVES), name))
    charts = []
    for name in ordered:
        if points := _points(report.metrics, name):
            title = CURVES[name].replace("image", report.noun) if name in CURVES else name
            top = 1.0 if name == "confidence" else 0.0
            last = Series(f"{points[-1][1]:.3g}", points, "model")
            chart = svg.line_chart([last], f"{title}, over steps", width=270, height=165, top=top)
            charts.append(f"<figure><figcaption>{escape(title)}</figcaption>{chart}</figure>")
    if not charts:
        return ""
    title, notes = "Losses and other metrics", []
    if "confidence" in names:
        title = f"The guesses for unlabeled {report.noun}s, and the losses"
        notes.append("Confidence is the mean of the largest probability of each guess; 1 is sure, not always right.")
    if not report.verdict.uses_unlabeled:
        notes.append(f"The method {_method(report)} learns from the labels alone.")
    if report.unlabeled.right is not None:
        notes.append(
            f"At the end {report.unlabeled.right:.1f} % of the unlabeled {report.noun}s {_of_sample(report.unlabeled)}"
            "are predicted right: the data set has their labels, but training did not see them."
        )
    return _section(title, f'<div class="three">{"".join(charts)}</div>', note=" ".join(notes), wide=True)


def _mistakes(report: Report, evaluated: Evaluated) -> str:
    shown, note = evaluated.mistakes, f"There are none: every test {report.noun} is right."
    if shown:
        note = f"The most confident first, {len(shown):,} of {evaluated.wrong:,}. Some of the labels may be wrong."
    texts = (
        f"predicted <b>{escape(s.predicted)}</b> {_sure(s.probability)}<br>true class <b>{escape(s.true or '')}</b>"
        for s in shown
    )
    return _gallery(report, "Most confident mistakes", note, shown, texts)


def _suspects(report: Report, suspects: list[Shown]) -> str:
    shown = suspects[:SHOWN]
    note = f"None stands out: no labeled {report.noun} looks more like another class than that class's own do."
    if shown:
        first = f"These are the first {len(shown):,} of {len(suspects):,}. " if len(shown) < len(suspects) else ""
        note = (
            f"Labeled {report.noun}s that a model trained without them takes for another class, as surely as it knows "
            f"that class's own. {first}Most suspect first: look at them, and correct what is wrong."
        )
    texts = (
        f"label <b>{escape(s.true or '')}</b><br>looks like <b>{escape(s.predicted)}</b> {_sure(s.probability)}"
        for s in shown
    )
    return _gallery(report, "Labels that may be wrong", note, shown, texts)


def _suggestions(report: Report, unlabeled: Unlabeled) -> str:
    shown, note = unlabeled.suggestions[:SHOWN], f"There are no unlabeled {report.noun}s."
    if shown:
        first = f"These are the first {len(shown)} of {len(unlabeled.suggestions)} in label-next.csv."
        note = (
            f"Unlabeled {report.noun}s {_of_sample(unlabeled)}that the model is unsure of and that differ from one "
            "another, so that each label adds something new. Uncertainty is the entropy of the prediction: 0 is "
            "certain, 100 a plain guess. "
            + (first if len(unlabeled.suggestions) > len(shown) else "They are listed in label-next.csv.")
        )
    texts = (
        f"<b>{escape(s.predicted)}?</b> {_sure(s.probability)}<br>uncertainty {100 * (s.score or 0):.0f}" for s in shown
    )
    return _gallery(report, "Worth labeling next", note, shown, texts)


def _no_class(report: Report, found: NoClass) -> str:
    shown, of = found.listed[:SHOWN], f"{found.sample:,} unlabeled {report.noun}s"
    note = (
        f"None stands out: {of} are about as near to the labeled ones as {report.noun}s of your classes are. Some may "
        "still show none of your classes."
    )
    if shown:
        note = (
            f"A guess: {len(found.listed):,} of {of} are like other unlabeled ones but unlike everything labeled, more "
            f"so than 95 % of the {report.noun}s of your classes. Some will be of a class after all. Likeliest first: "
            "remove what is of no class, and label some of the others. "
        )
        note += f"These are the first {len(shown)}; no-class.csv lists all." if len(shown) < len(found.listed) else ""
    texts = (f"taken for <b>{escape(s.predicted)}</b> {_sure(s.probability)}" for s in shown)
    return _gallery(report, "May show none of your classes", note, shown, texts)


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
    body = (
        f'<tr><th scope="row">{escape(str(name).replace("_", " "))}</th><td>{escape(_plain(value))}</td></tr>'
        for name, value in rows
        if value not in (None, "")
    )
    return (
        '<section class="wide"><details><summary>Settings and hardware</summary>'
        f"{_table('settings', body)}</details></section>"
    )


# -------------------------------------------------------------------------------------------------------------- pieces


def _section(title: str, body: str, note: str, wide: bool = False) -> str:
    intro = f'<p class="soft">{escape(_unbroken(note))}</p>' if note else ""
    kind = ' class="wide"' if wide else ""
    return f"<section{kind}><h2>{escape(title)}</h2>{intro}{body}</section>"


def _table(kind: str, rows: Iterable[str], head: str = "") -> str:
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f'<div class="scroll"><table class="{kind}">{top}<tbody>{"".join(rows)}</tbody></table></div>'


def _unbroken(text: str) -> str:
    """Numbers stay with their percent sign."""
    return text.replace(" %", "\u00a0%")


def _points(metrics: Sequence[Record], name: str) -> list[tuple[float, float]]:
    return [(float(m["step"]), float(m[name])) for m in metrics if isinstance(m.get(name), (int, float))]


def _method(report: Report) -> str:
    """The method's name; of one from outside the package, the name of its class."""
    return str(report.record["method"]).removeprefix("custom:")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _sure(probability: float) -> str:
    """Never 100 %: no prediction is certain, even if it rounds to that."""
    return ">99.9\u00a0%" if probability > 0.9995 else f"{100 * probability:.1f}\u00a0%"


def _of_sample(unlabeled: Unlabeled) -> str:
    if unlabeled.sample == unlabeled.total:
        return ""
    return f"(a random {unlabeled.sample:,} of the {unlabeled.total:,}) "


def _short(name: str, most: int = 18) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _gallery(report: Report, title: str, note: str, shown: Sequence[Shown], texts: Iterable[str]) -> str:
    """A section with a list of images, if they have pixels, each with a text and its file or row."""
    items = []
    for each, text in zip(shown, texts, strict=True):
        name, image = escape(each.name if report.user_data else f"row {each.name}"), ""
        if each.pixels is not None:
            tiny = ' class="tiny"' if max(each.pixels.shape[:2]) <= 32 else ""
            image = f'<img{tiny} src="{data_uri(each.pixels)}" alt="{name}">'
        items.append(f'<li>{image}<div>{text}<br><span class="file">{name}</span></div></li>')
    return _section(title, f'<ul class="thumbs">{"".join(items)}</ul>' if items else "", note=note, wide=True)


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
