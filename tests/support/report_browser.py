"""A page of `meshard report` in a headless browser: a script acts in it as a reader would and says what it sees."""
import html
import json
import re
import shutil

from harness import Run, Skip, expect, scratch

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# Before anything else of the page: what goes wrong in it.
LISTENER = """<script>var wrong = [];
addEventListener("error", (event) => wrong.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => wrong.push(`blocked: ${event.violatedDirective}`));</script>"""

# After it: a reader's doings, whose result becomes text that --dump-dom shows.
DOINGS = """<script>
const all = (selector) => [...document.querySelectorAll(selector)];
const one = (selector) => document.querySelector(selector);
const input = (id, value) => {
  const field = document.getElementById(id);
  field.value = value;
  field.dispatchEvent(new Event(field.tagName === "SELECT" ? "change" : "input"));
};
const point_at = (selector, x, y) => {
  const box = one(selector).getBoundingClientRect();
  one(selector).dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + x, clientY: box.top + y}));
  return one("#tip").textContent;
};
const sort = (key) => one(`th[data-key="${key}"]`).click();
const column = (key) => {
  const place = all("th").findIndex((cell) => cell.dataset.key === key);
  return all("tbody tr").map((row) => row.children[place].textContent);
};
const curves = (metric) => all(`[data-metric=${metric}] path.curve`);
const coloured = (metric) => all(`[data-metric=${metric}] path.curve:not(.other)`).length;
let result;
try {
  result = (() => { %s })();
} catch (error) {
  wrong.push(String(error.stack));
}
const text = JSON.stringify({...result, wrong});
document.body.append(Object.assign(document.createElement("pre"), {id: "result", textContent: text}));
</script></body>"""


def browse(page, script, dark=False, width=1400):
    """What the script (the body of a function) returns, as a dictionary; None if the page did not run to its end."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not browser:
        raise Skip(f"the page was not looked at: no {', '.join(BROWSERS)} here; Debian: apt-get install chromium")
    copy = scratch("page.html")
    text = page.read_text().replace("<head>", "<head>" + LISTENER, 1).replace("</body>", DOINGS % script, 1)
    copy.write_text(text)
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    run = Run([browser, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},1000",
               "--enable-logging=stderr", f"--user-data-dir={copy.parent / 'profile'}", *scheme, "--dump-dom",
               copy.as_uri()]).wait(120)
    found = re.search(r'<pre id="result">(.*?)</pre>', run.out, re.S)
    if not expect("browser: the page runs to its end", run.code == 0 and found, run):
        return None
    result = json.loads(html.unescape(found[1]))
    console = [line for line in run.err.splitlines() if "CONSOLE" in line]
    expect("browser: no error, nothing on the console", not result["wrong"] and not console, result["wrong"], console)
    return result
