// The one next thing to do in the tab Label, from what is there: {id, text, act: [name, what, argument], later}.
import { count } from "./dom.js";

const EXAM_SIZE = 50;
const LEAST_EXAM = 5;
const ENOUGH = 12; // labels to learn from before a first model is worth its time

// Pictures that an exam should have: a quarter of those without a label, 0 where that is too few to say anything.
export function examSize({ unlabeled }) {
  const size = Math.min(EXAM_SIZE, Math.round(unlabeled / 4));
  return size < LEAST_EXAM ? 0 : size;
}

export function advise({ state, counts, classes, filter, rule }) {
  const { exam, total, train, guesses } = state;
  const left = exam.size - counts.exam - (exam.skipped ?? 0);
  const { learned } = counts;
  if (!total) return null;
  if (classes < 2) return { id: "classes", text: FIRST[classes] };
  const size = examSize(counts);
  if (!exam.size && !exam.test_folder && size) {
    const text =
      `Start with an exam: ${size} pictures drawn at random, kept apart, that you label without any help. Only they ` +
      `can say how good a model is on the whole folder. About ${Math.max(1, Math.round(size / 25))} min.`;
    return { id: "exam", text, act: [`Draw ${size} pictures`, "draw", size], later: true };
  }
  if (filter === "exam" && left > 0) {
    const text =
      `The exam: ${count(left, "picture")} to go. They are drawn at random and no guess is shown, so that the error ` +
      "is fair. Skip what you cannot tell.";
    return { id: "exam-here", text };
  }
  if (filter === "exam") {
    const text = "The exam is complete. Now label the pictures a model learns from.";
    return { id: "exam-here", text, act: ["Suggest pictures", "work", "next"] };
  }
  if (left > 0) {
    const text = `The exam still lacks ${count(left, "picture")}. Until then the error of a model is less certain.`;
    return { id: "exam-left", text, act: ["Continue the exam", "work", "exam"], later: true };
  }
  if (filter === "next" && rule && (learned < ENOUGH || train.run)) return { id: "why", text: rule };
  if (learned < ENOUGH && !counts.unlabeled) return null;
  if (learned < ENOUGH) {
    const text = "Next: label the pictures a model learns most from.";
    return { id: "next", text, act: ["Suggest pictures", "work", "next"], later: true };
  }
  if (!train.run) {
    const text = `${count(learned, "label")} to learn from: enough for a first model. It trains while you go on.`;
    return { id: "train", text, act: ["Train", "tab", "train"], later: true };
  }
  if (guesses?.count) {
    const text = `${guesses.run} has guessed ${count(guesses.count, "picture")}. Confirm what it is sure of.`;
    return { id: `guesses-${guesses.run}`, text, act: ["Look at the guesses", "tab", "guesses"], later: true };
  }
  return null;
}

const FIRST = [
  "What do your pictures show? Name the first class.",
  "And the second one. Each class gets a key: press it, and the selected pictures have that label.",
];
