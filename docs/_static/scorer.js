// Scores of the site's search, which Sphinx includes in its script: guides come before the reference, pages about the words
// of the query before those that mention them. Names of operators and classes, and the words in a page's comments
// `<!-- search: ... -->`, are entries of the index, which Sphinx lists first.

const internals = new Set([
  "architecture", "arrays", "distributed", "engine", "features", "finding", "graph", "importing", "kernels", "scaling", "services",
  "testing", "training", "vocabulary", "wire",
]);

const places = [["reference/", -4], ["api/", -2], ["sections/", -6], ["performance", -2], ["clients", -3]];

var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,

  score: ([page, title, anchor, description, score, file, kind]) => {
    if (kind === "index") return score;
    if (kind === "object") return score > 15 ? score + 10 : score;
    const place = internals.has(page) ? -3 : (places.find(([prefix]) => page.startsWith(prefix)) ?? ["", 2])[1];
    if (kind === "title") return score + place + 8;
    const query = new URLSearchParams(window.location.search).get("q") ?? "";
    const stemmer = new Stemmer();
    const stems = (text) => splitQuery(text.toLowerCase()).map((word) => stemmer.stemWord(word));
    const wanted = stems(query);
    const inTitle = new Set(stems(title));
    return score + place + (10 * wanted.filter((word) => inTitle.has(word)).length) / Math.max(1, wanted.length);
  },
};

// An entry of the index is an empty element, for which Sphinx has no summary and throws: use the text of its page.
const summarizeEntries = () => {
  const textOf = Search.htmlToText;
  Search.htmlToText = (page, anchor) => textOf(page, anchor) || textOf(page);
};
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", summarizeEntries);
else queueMicrotask(summarizeEntries);
