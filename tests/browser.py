"""A real browser: what it makes of a page, as wide as a phone and as a desk."""

import html
import json
import re
import shutil
import subprocess

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--enable-logging=stderr", "--v=0"),
)
WIDTHS = (390, 1280)
# The page in frames: a headless window itself is never narrower than 500 pixels.
HARNESS = """<!doctype html><title>probe</title>{frames}<pre id="probe"></pre><script>
{look}
onload = () => {{
  document.getElementById("probe").textContent = JSON.stringify([...document.querySelectorAll("iframe")].map(look));
  console.info("probed");
}};
</script>"""


def probe_page(page, look):
    """{width: what the script's function `look(frame)` returns}; the page must leave the browser's console silent."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(
            f"no browser on this machine, looked for {', '.join(BROWSERS)}: on Debian, apt-get install chromium"
        )
    source = html.escape(page.read_text(encoding="utf-8"))
    frames = [f'<iframe width="{w}" height="800" style="border:0" srcdoc="{source}"></iframe>' for w in WIDTHS]
    harness = page.with_name("harness.html")
    harness.write_text(HARNESS.format(frames="".join(frames), look=look), encoding="utf-8")
    profile = f"--user-data-dir={page.with_name('profile')}"
    command = [browser, *FLAGS, profile, "--window-size=1400,1000", "--dump-dom"]
    run = subprocess.run([*command, harness.as_uri()], capture_output=True, text=True, timeout=300, check=True)
    console = [line for line in run.stderr.splitlines() if "CONSOLE" in line]
    assert len(console) == 1, console
    assert '"probed"' in console[0]  # so that a console nobody hears cannot pass for a silent one
    seen = json.loads(html.unescape(re.search(r'<pre id="probe">(.*?)</pre>', run.stdout, re.DOTALL)[1]))
    return dict(zip(WIDTHS, seen, strict=True))
