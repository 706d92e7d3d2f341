// The choice of versions in the sidebar, where this site stands beside those of others (`make site`): ../versions.json
// lists them, newest first. By itself a site shows none.

const form = document.querySelector("form.versions");

async function offer() {
  const root = new URL(document.documentElement.dataset.content_root, location.href);
  const answer = await fetch(new URL("../versions.json", root));
  if (!answer.ok) return;
  const versions = await answer.json();
  const { version, page } = form.dataset;
  const select = form.querySelector("select");
  for (const each of versions) select.add(new Option(each === versions[0] ? `${each} (newest)` : each, each, each === version, each === version));
  select.addEventListener("change", async () => {
    const other = new URL(`../${select.value}/`, root);
    const same = new URL(`${page}.html`, other); // older versions lack some pages
    location.href = (await fetch(same, { method: "HEAD" })).ok ? same : other;
  });
  form.hidden = false;
  if (version !== versions[0]) {
    const note = document.querySelector("article").insertAdjacentElement("afterbegin", document.createElement("p"));
    note.className = "old-version";
    note.append(`This is about flowmx ${version}. `, Object.assign(document.createElement("a"), { href: new URL(`../${versions[0]}/`, root), textContent: `The newest version is ${versions[0]}.` }));
  }
}

if (form && location.protocol.startsWith("http")) offer().catch(() => {});
