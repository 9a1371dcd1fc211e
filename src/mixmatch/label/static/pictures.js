// A picture that does not come. What the server says of the file itself holds; else it is asked for again.
const FOR_GOOD = [404, 422]; // gone, or no image

// Marks the `box` around an image that did not come: "broken", or "waiting" until `again`. Of one that is no image
// `unreadable` is told.
export function watch(image, box, unreadable) {
  image.addEventListener("load", () => box.classList.remove("broken", "waiting"));
  image.addEventListener("error", async () => {
    const src = image.getAttribute("src");
    if (!src) return;
    const status = await fetch(src).then(
      (answer) => answer.status,
      () => 0, // no answer
    );
    if (image.getAttribute("src") !== src) return; // by now it shows another
    box.classList.toggle("broken", FOR_GOOD.includes(status));
    box.classList.toggle("waiting", !FOR_GOOD.includes(status));
    if (status === 422) unreadable();
  });
}

// Another picture takes the place, or the same one is asked for once more.
export function clear(image, box) {
  box.classList.remove("broken", "waiting");
  image.removeAttribute("src");
}
