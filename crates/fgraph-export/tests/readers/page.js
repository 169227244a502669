// Runs the script of a page without a browser, and prints the bars of its timeline and the states
// of threads: begin, end, and the time in each state; and the colors of functions.
const fs = require("fs");
const vm = require("vm");

const page = fs.readFileSync(process.argv[2], "utf8");
const scripts = [...page.matchAll(/<script([^>]*)>([^]*?)<\/script>/g)];
const texts = {};
let program = "";
for (const [, attributes, text] of scripts) {
  const id = /id="(\w+)"/.exec(attributes);
  if (id) texts[id[1]] = text; else program = text;
}

const SIZE = { clientWidth: 1000, clientHeight: 10000, value: "" };
// An element whose properties are all elements.
function element(known) {
  return new Proxy(function () {}, {
    get(_, key) {
      if (key in known) return known[key];
      if (key === Symbol.toPrimitive) return () => 0;
      if (key === Symbol.iterator) return [][Symbol.iterator].bind([]);
      return known[key] = element({ ...SIZE });
    },
    set(_, key, value) { known[key] = value; return true; },
    apply: () => element({ ...SIZE }),
  });
}
const ids = {};
const document = element({
  getElementById: id => ids[id] = ids[id] || element({ ...SIZE, textContent: texts[id] }),
});
const window = { devicePixelRatio: 1, addEventListener() {} };
const context = vm.createContext({
  document, window, console, atob, Blob, Response, DecompressionStream, Uint8Array, Float64Array,
  location: { hash: "#timeline" }, history: { replaceState() {} },
  getComputedStyle: () => ({}), addEventListener() {},
  ResizeObserver: class { observe() {} },
});
vm.runInContext(program, context);
const wait = setInterval(() => {
  if (document.documentElement.dataset.ready !== "yes") return;
  clearInterval(wait);
  const bars = vm.runInContext(`spots.map(([begin, y, end, call]) => ({
    begin, end, name: F[timeline.what[call]][NAME], lost: timeline.isLost[call] }))`, context);
  const states = vm.runInContext("strips.map(([x, y, end, times]) => [x, end, times])", context);
  const colors = vm.runInContext("Object.fromEntries(F.map((f, n) => [f[NAME], color(n)]))",
    context);
  console.log(JSON.stringify({ bars, states, colors }));
}, 20);
