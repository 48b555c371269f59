// The main flows of the page in Firefox, over WebDriver BiDi. TestPageInFirefox starts it with a server.
//
//   node flows.mjs URL TOKEN FILE   FILE is uploaded as an image
//
// It fails at a step that does not come about, at what axe finds, at a view that is too wide, and at an error of a script.
// INGOT_PICTURES names a folder for screenshots.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import puppeteer from "puppeteer-core";

const [url, token, file] = process.argv.slice(2);
const axe = await readFile(new URL("../../web/node_modules/axe-core/axe.min.js", import.meta.url), "utf8");

/** Opens the page in dark or light colours and logs in. */
async function open(colours) {
  const browser = await puppeteer.launch({
    browser: "firefox",
    executablePath: "/usr/bin/firefox-esr",
    extraPrefsFirefox: { "layout.css.prefers-color-scheme.content-override": colours === "dark" ? 0 : 1, "ui.prefersReducedMotion": 1 },
  });
  const page = await browser.newPage();
  const errors = [];
  // Firefox asks for favicon.ico wherever a document names no icon.
  page.on("pageerror", (e) => e.message.includes("/favicon.ico") || errors.push(e.message));
  const see = (selector) => page.waitForSelector(selector, { visible: true, timeout: 60_000 });
  const tab = {
    page,
    errors,
    see,
    go: (place) => page.evaluate((place) => void (location.hash = place), place),
    gone: (selector) => page.waitForSelector(selector, { hidden: true, timeout: 60_000 }),
    press: (...keys) => keys.reduce((before, key) => before.then(() => page.keyboard.press(key)), Promise.resolve()),
    click: async (selector) => (await see(selector)).click(),
    /** Replaces the text of a field. */
    type: async (selector, text) => {
      await see(selector);
      await page.$eval(selector, (e) => (e.focus(), e.select()));
      await page.keyboard.press("Backspace");
      await page.keyboard.type(text);
    },
    focused: () => page.evaluate(() => document.activeElement?.getAttribute("href") ?? document.activeElement?.tagName),
    /** Checks what is shown, and takes its pictures, in three widths. */
    everywhere: async (name) => {
      for (const [width, height] of [[1440, 900], [1024, 768], [390, 844]]) {
        await page.setViewport({ width, height });
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(wide <= 0, `${name} at ${width}: ${wide} px too wide`);
        assert.equal(await findings(page), "", `${name} at ${width}`);
        const dir = process.env.INGOT_PICTURES;
        if (dir) await page.screenshot({ path: `${dir}/firefox-${colours}-${name}-${width}.png` });
      }
      await page.setViewport({ width: 1440, height: 900 });
    },
    close: () => browser.close(),
  };
  await page.setViewport({ width: 1440, height: 900 });
  await page.goto(url);
  await tab.type('input[name="token"]', "wrong");
  await tab.press("Enter");
  await see('[role="alert"]');
  await tab.type('input[name="token"]', token);
  await tab.press("Enter");
  await see("[data-machine]");
  return tab;
}

/** Returns the problems of accessibility that axe finds in what is shown. */
async function findings(page) {
  await page.evaluate(`${axe}; 0`);
  return page.evaluate(async () => {
    const { violations } = await axe.run(document, { resultTypes: ["violations"] });
    return violations.map((v) => [v.id, v.help, ...v.nodes.map((n) => `${n.target.join(" ")} ${n.failureSummary}`)].join("\n")).join("\n");
  });
}

/** Does each step, and fails with what was wrong in all of them. */
async function steps(tab, all) {
  const wrong = [];
  for (const [name, step] of Object.entries(all)) {
    try {
      await step(tab);
    } catch (e) {
      wrong.push(`${name}: ${e.stack}`);
    }
  }
  await tab.close();
  assert.deepEqual([...wrong, ...tab.errors], []);
}

const place = (path, there) => async (t) => {
  await t.go(`/${path}`);
  await t.see(there);
  await t.everywhere(path.replaceAll("/", "-") || "machines");
};
const statistics = place("statistics", '[data-chart="days"] rect');

await steps(await open("light"), {
  table: place("", "[data-machine]"),
  find: async (t) => {
    await t.type('.filters input[type="search"]', "rack=r02");
    await t.gone('[data-machine="node-19"]');
    await t.see('[data-machine="node-85"]');
    await t.type('.filters input[type="search"]', "hand-1");
    await t.see('[data-machine="hand-1"]');
  },
  "by the keyboard alone": async (t) => {
    for (let i = 0; (await t.focused()) !== "#/machines/hand-1"; i++) {
      assert.ok(i < 20, "Tab does not reach the machine");
      await t.press("Tab");
    }
    await t.press("Enter");
    await t.see('[data-panel="hand-1"]');
    await t.page.focus('[data-part="runs"] summary');
    await t.press("Enter");
    await t.see('[data-run="run-hand-1"]');
  },
  "search everything": async (t) => {
    await t.type('input[name="everything"]', "debian-12");
    await t.see('[data-found] a[href="#/images/debian-12"]');
    await t.everywhere("search");
    await t.click('[data-found] a[href="#/images/debian-12"]');
    await t.see('[data-image-panel="debian-12"]');
    await t.everywhere("image");
  },
  "add a machine": async (t) => {
    await t.go("/new/machine");
    await t.type('[id="field-name"]', "Node F");
    await t.type('[id="field-interfaces[0].mac"]', "02:00:00:01:00:f1");
    await t.press("Enter");
    await t.see('[data-field="name"] .failure');
    await t.everywhere("machine-form");
    await t.type('[id="field-name"]', "node-f");
    await t.press("Enter");
    await t.see('[data-panel="node-f"]');
  },
  "edit it": async (t) => {
    await t.go("/machines/node-f/edit");
    await t.type('[id="field-labels"]', "rack=fox");
    await t.click('[data-choice="save"]');
    await t.see("[data-said]");
    await t.type('[id="field-network"]', "colour: red");
    await t.click('[data-choice="save"]');
    await t.see('[data-field="network"] [data-line="1"]');
    await t.everywhere("machine-edit");
  },
  "preview an installation": async (t) => {
    await t.go("/new/installation");
    await t.type('[id="field-machines"]', "new");
    await t.click('[data-choice="preview"]');
    await t.see('[data-preview="1"]');
    await t.everywhere("install-many");
  },
  "upload an image over a connection that breaks": async (t) => {
    await t.go("/new/image");
    await t.see('[id="field-way"]');
    await t.page.select('[id="field-way"]', "upload");
    await (await t.see('[id="field-file"]')).uploadFile(file);
    await t.click('[data-choice="add-image"]:not(:disabled)');
    await t.see('[data-image-panel="some-disk"]');
  },
  template: place("templates/image", "[data-template-panel]"),
  tokens: place("tokens", "main"),
  operations: place("operations", "main"),
  statistics,
});

await steps(await open("dark"), {
  table: async (t) => {
    assert.equal(await t.page.evaluate(() => getComputedStyle(document.body).backgroundColor), "rgb(15, 19, 24)");
    await t.everywhere("machines");
  },
  question: place("machines/node-69", '[data-panel="node-69"] [data-question]'),
  form: place("new/machine", "[data-machine-form]"),
  statistics,
});
