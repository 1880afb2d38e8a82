// Drives the page of `lily serve` in Chromium, as a person would, and says what it saw. By hand: needs Node, Chromium and
// `npm ci` in the folder above.
//
//   node page/check.mjs LILY [FOLDER FOR PICTURES]
//
// Most checks talk with the built-in model. Those of what a hostile or gifted model might say give the page a written
// answer in place of the server's.

import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { createInterface } from "node:readline";
import puppeteer from "puppeteer-core";

const [lily, pictures] = process.argv.slice(2);
const chromium = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome",
  "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"].find((path) => path && existsSync(path));
if (!lily || !chromium) {
  console.log(lily ? "SKIP page: no Chromium was found (CHROMIUM=PATH names one)" : "usage: check.mjs LILY [FOLDER]");
  process.exit(lily ? 0 : 2);
}

/** Starts the server; resolves to its address. */
async function serve() {
  const child = spawn(lily, ["serve", "--port", "0", "--model", "lily-demo"], { stdio: ["ignore", "ignore", "pipe"] });
  for await (const line of createInterface({ input: child.stderr })) {
    const address = line.match(/http:\/\/[\d.]+:\d+/);
    if (address) return { child, address: address[0] };
  }
  throw new Error("lily serve did not start");
}

const { child: server, address } = await serve();
const browser = await puppeteer.launch({ executablePath: chromium, args: ["--no-sandbox", "--force-color-profile=srgb"] });
const page = await browser.newPage();
const foreign = [], complaints = [];
let written = null; // the answer to give in place of the server's

await page.setViewport({ width: 1100, height: 760, deviceScaleFactor: 1 });
await page.setRequestInterception(true);
page.on("request", (request) => {
  const url = new URL(request.url());
  if (url.protocol !== "data:" && url.origin !== address) foreign.push(request.url());
  if (written && url.pathname === "/v1/chat/completions") request.respond(written);
  else request.continue();
});
page.on("console", (message) => { if (message.type() === "error") complaints.push(message.text()); });
page.on("pageerror", (error) => complaints.push(String(error)));
page.on("dialog", (dialog) => { complaints.push("dialog: " + dialog.message()); dialog.dismiss(); });

const texts = (selector) => page.$$eval(selector, (nodes) => nodes.map((node) => node.textContent));
const last = async (selector) => (await texts(selector)).at(-1) ?? "";
const idle = () => page.waitForFunction(() => document.querySelector("#send").title.startsWith("Send"), { timeout: 60000 });
const picture = async (name) => { if (pictures) await page.screenshot({ path: `${pictures}/${name}.png` }); };
const click = (selector, words) => page.$$eval(selector, (nodes, words) => nodes.filter((node) => node.textContent === words).at(-1).click(), words);

async function send(text) {
  await page.type("#input", text);
  await page.keyboard.press("Enter");
}

async function set(name, value) {
  await page.$eval(`[name=${name}]`, (field, value) => {
    field.value = value;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }, value);
}

/** An answer of the API as a stream, from its deltas. */
function stream(deltas, finish_reason = "stop") {
  const chunk = (choices, usage = null) => `data: ${JSON.stringify({ object: "chat.completion.chunk", choices, usage })}\n\n`;
  const usage = { prompt_tokens: 31, completion_tokens: 64, total_tokens: 95, prompt_tokens_details: { cached_tokens: 15 } };
  const body = deltas.map((delta) => chunk([{ index: 0, delta, finish_reason: null }])).join("");
  return { status: 200, contentType: "text/event-stream", body: body + chunk([{ index: 0, delta: {}, finish_reason }]) + chunk([], usage) + "data: [DONE]\n\n" };
}

const RICH = `Here is **what matters**, in short.

1. Read the file *once*, with \`open()\`.
2. Count the words:
   - skip blank lines
   - fold the case

\`\`\`python
def count(path):
    """How often each word stands in a file."""
    with open(path) as lines:
        return Counter(word for line in lines for word in line.split())
\`\`\`

| file | words |
| --- | --- |
| note.txt | 1,204 |
| letter.txt | 311 |

> The longest word is 14 letters.`;

const HOSTILE = `<img src=x onerror="document.title='owned'"> <script>document.title='owned'</script>
[click](javascript:document.title='owned') \`<b>code</b>\` **<svg onload=alert(1)>**

\`\`\`html"><img src=x onerror=alert(1)>
<img src=x onerror="document.title='owned'">
\`\`\`
| <img src=x onerror=alert(1)> | b |
| --- | --- |
| <iframe srcdoc="<script>alert(1)</script>"> | d |`;

const checks = {
  async "the page names the model and its context"() {
    await page.goto(address, { waitUntil: "load" });
    await page.waitForFunction(() => document.querySelector("#model b"));
    await picture("empty");
    const model = await last("#model");
    return /^lily-demo, [\d,]+ tokens of context$/.test(model) || model;
  },
  async "thinking is shown folded"() {
    await set("temperature", "0");
    await send("What is 27 + 58?");
    await page.waitForSelector("details.thinking:not([hidden])");
    const folded = await page.$eval("details.thinking", (node) => !node.open);
    await idle();
    const [answer, title] = [await last(".assistant .text"), await last("summary")];
    await picture("thought");
    return folded && answer === "27 + 58 = 85" && /^Thought for \d+\.\d s$/.test(title) || `${folded} ${answer} ${title}`;
  },
  async "speed, first token and cached tokens stand under the answer"() {
    await send("What is the capital of France?");
    await idle();
    const stats = await last(".stats");
    await page.setViewport({ width: 900, height: 620, deviceScaleFactor: 1 });
    await page.click("summary");
    await new Promise((done) => setTimeout(done, 300)); // the arrow turns
    await picture("readme");
    await page.setViewport({ width: 1100, height: 760, deviceScaleFactor: 1 });
    return /first token [\d.]+ s.*tokens.*prompt \d+, [1-9]\d* cached/.test(stats) || stats;
  },
  async "regenerate asks again, edit asks something else"() {
    await click(".assistant .actions button", "Regenerate");
    await idle();
    const turns = (await texts(".turn")).length;
    await click(".user .actions button", "Edit");
    await page.waitForSelector(".editing textarea");
    await page.$eval(".editing textarea", (box) => { box.value = ""; });
    await page.type(".editing textarea", "What is 20 + 22?");
    await page.keyboard.press("Enter");
    await idle();
    const answer = await last(".assistant .text");
    return turns === 4 && (await texts(".turn")).length === 4 && /42/.test(answer) || `${turns} ${answer}`;
  },
  async "an answer grows while it is written"() {
    await page.click("#new");
    await set("thinking", "off");
    await page.evaluate(() => {
      window.lengths = new Set();
      const length = (part) => document.querySelector(".assistant " + part)?.textContent.length ?? 0;
      const watch = () => window.lengths.add(length(".thoughts") + length(".text"));
      new MutationObserver(watch).observe(document.querySelector("#log"), { childList: true, subtree: true, characterData: true });
    });
    await send("Tell me a story about a fox named Rosa.");
    await idle();
    const lengths = await page.evaluate(() => [...window.lengths]);
    return lengths.length > 5 || lengths.join();
  },
  async "stop ends an answer and keeps what was said"() {
    await page.click("#new");
    await send("Tell me a story about a fox named Rosa.");
    await page.waitForFunction(() => (document.querySelector(".assistant .text")?.textContent.length ?? 0) > 20);
    await page.keyboard.press("Escape");
    await idle();
    const [text, note] = [await last(".assistant .text"), await last(".note")];
    return text.length > 20 && note === "Stopped." || `${text} ${note}`;
  },
  async "what the user types is text"() {
    await page.click("#new");
    await send(`<img src=x onerror="document.title='owned'">`);
    await idle();
    const found = await page.$$eval("#log img", (nodes) => nodes.length);
    return found === 0 && (await last(".said")).startsWith("<img") && !(await page.title()).includes("owned") || "markup";
  },
  async "what a model says is text"() {
    await page.click("#new");
    written = stream([{ role: "assistant" }, { reasoning_content: HOSTILE }, { content: HOSTILE }]);
    await send("Be hostile.");
    await idle();
    const bad = "#log :is(img, script, iframe, b, a):not(summary *), .text svg";
    const found = await page.$$eval(bad, (nodes) => nodes.map((node) => node.outerHTML));
    const shown = await last(".assistant .text");
    return found.length === 0 && shown.includes("<img src=x onerror") && !(await page.title()).includes("owned") || found.join();
  },
  async "a policy would stop markup even if it came in"() {
    const before = complaints.length;
    const refused = await page.evaluate(() => {
      try { document.querySelector("#log").innerHTML = "<i>x</i>"; return false; } catch { return true; }
    });
    complaints.length = before; // the browser tells the console of it
    return refused || "innerHTML was taken";
  },
  async "Markdown is drawn, code can be copied"() {
    await page.click("#new");
    written = stream([{ reasoning_content: "The user wants it short." }, ...RICH.match(/[\s\S]{1,7}/g).map((content) => ({ content }))]);
    await send("How do I count the words of a file?");
    await idle();
    await page.$eval("#scroll", (node) => { node.scrollTop = 0; });
    await picture("markdown");
    const parts = await Promise.all(["strong", "em", "ol > li > ul > li", ".code pre code", "td", "blockquote"].map((part) => texts(".text " + part)));
    const copy = await texts(".code button");
    return parts.every((part) => part.length) && parts[3][0].includes("    with open(path)") && copy[0] === "Copy" || JSON.stringify(parts);
  },
  async "tool calls are shown and take a result"() {
    await page.click("#new");
    await set("tools", `[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]`);
    const call = (index, id, name, cut) => [
      { tool_calls: [{ index, id, type: "function", function: { name, arguments: cut[0] } }] },
      ...cut.slice(1).map((piece) => ({ tool_calls: [{ index, function: { arguments: piece } }] }))];
    written = stream([{ content: "Let me look." }, ...call(0, "call_1", "weather", ['{"city": "Ber', 'lin", "days": 3}']),
      ...call(1, "call_2", "weather", ['{"city":"Rome"}'])], "tool_calls");
    await send("Is it warmer in Berlin or in Rome?");
    await idle();
    await picture("tools");
    const cards = await texts(".call > pre");
    let sent = null;
    written = stream([{ content: "It is warmer in Rome." }]);
    page.once("request", (request) => { sent = JSON.parse(request.postData()); });
    for (const [box, value] of [["call_1", "17 °C"], ["call_2", "24 °C"]]) await page.type(`[data-call=${box}]`, value);
    await click("button.primary", "Send the results");
    await idle();
    written = null;
    await set("tools", "");
    const roles = sent.messages.map((message) => message.role).join();
    const plain = sent.messages.every((message) => !("page" in message)) && sent.messages[3].content === "24 °C";
    return cards[0].includes('"days": 3') && roles === "user,assistant,tool,tool" && plain && sent.tools.length === 1 || `${cards} ${JSON.stringify(sent)}`;
  },
  async "errors are words"() {
    await page.click("#new");
    await set("temperature", "-1");
    await send("Hello!");
    await idle();
    const refused = await last(".error");
    complaints.length = 0; // the browser reports the 400 to its console
    await set("temperature", "warm");
    await click(".assistant .actions button", "Try again");
    const odd = await last(".error");
    await set("temperature", "0");
    await picture("error");
    return refused.includes("temperature") && odd.includes("not a number") || `${refused} ${odd}`;
  },
  async "nothing is kept unless it is asked for"() {
    const before = await page.evaluate(() => localStorage.length);
    await page.click("#new");
    await send("What is 20 + 22?");
    await idle();
    await page.$eval("[name=keep]", (box) => box.click());
    const kept = await page.evaluate(() => localStorage.getItem("lily"));
    await page.reload({ waitUntil: "load" });
    const back = await last(".said");
    await page.$eval("[name=keep]", (box) => box.click());
    const after = await page.evaluate(() => localStorage.length);
    return before === 0 && kept.includes("20 + 22") && !kept.includes('"key"') && back === "What is 20 + 22?" && after === 0 || `${before} ${kept} ${back} ${after}`;
  },
  async "a phone and the dark have their looks"() {
    await set("thinking", "");
    await page.click("#new");
    await send("What is 31 + 11?");
    await idle();
    await page.click("#theme");
    const dark = await page.$eval("body", (node) => getComputedStyle(node).backgroundColor);
    await picture("dark");
    await page.click("#settings");
    await picture("settings");
    await page.keyboard.press("Escape");
    await page.setViewport({ width: 390, height: 780, deviceScaleFactor: 2 });
    written = stream([{ reasoning_content: "The user wants it short." }, { content: RICH }]);
    await send("How do I count the words of a file?");
    await idle();
    written = null;
    await picture("phone");
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    return dark === "rgb(23, 22, 25)" && width === 390 || `${dark} ${width}`;
  },
  async "a server that is gone is told in words"() {
    server.kill("SIGKILL");
    await send("Are you there?");
    await idle();
    complaints.length = 0;
    const words = await last(".error");
    return words.startsWith("The server does not answer.") || words;
  },
  async "no other host was asked, and the console is clean"() {
    return foreign.length + complaints.length === 0 || [...foreign, ...complaints].join("; ");
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  const result = await check().catch((error) => `threw ${error.message}`);
  if (result !== true) failed += 1;
  console.log(result === true ? `ok      page: ${name}` : `FAILED  page: ${name}: ${result}`);
}
await browser.close();
server.kill();
console.log(`page: ${Object.keys(checks).length - failed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
