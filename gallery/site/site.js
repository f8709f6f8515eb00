// A line above a long table or list filters its rows, and pages inside the site follow its colors.
for (const field of document.querySelectorAll("input[data-filters]")) {
  const rows = [...document.querySelectorAll(field.dataset.filters)];
  const found = document.getElementById(field.getAttribute("aria-describedby"));
  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const row of rows) {
      row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
      shown += !row.hidden;
    }
    found.textContent = `${shown} of ${rows.length}`;
  };
  field.addEventListener("input", filter);
  filter();
}

const paint = () => {
  const theme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light";
  for (const frame of document.querySelectorAll("iframe.view"))
    if (frame.dataset.theme !== theme) {
      frame.dataset.theme = theme;
      frame.src = `${frame.src.split("#")[0]}#theme=${theme}`; // as the page writes its address
    }
};
new MutationObserver(paint).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
paint();
