#!/usr/bin/env python3
"""descent report --html in a headless Chromium: values are read back, the pointer zooms and switches runs, names that could break
out of the page do not, nothing is asked of a network, and pictures in light and dark differ."""
import json
import os
import subprocess
import sys
import tempfile
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import browser  # noqa: E402

program = browser.find()
if not program:
    print("skipped: no chromium")
    sys.exit(77)
descent = os.path.join(os.environ["DESCENT_BINARY_DIR"], "descent")
work = tempfile.TemporaryDirectory()
os.chdir(work.name)


def line(**values):
    return json.dumps(values) + "\n"


def write_run(name, steps, optimizer="sgd", kfac=0, gossip=False, ranks=1, end="done", top1=0.5, ema=False, target=None):
    """The metrics of a run whose values are simple formulas."""
    os.makedirs(name)
    epoch_steps = steps // 4
    config = {"model": "lenet", "lr": 0.1, "optimizer": {"name": optimizer}, "kfac": {"update_freq": kfac}, "consensus": "sgp" if gossip else "allreduce"}
    with open(name + b"/metrics.jsonl", "w") as file:
        file.write(line(kind="run", version="0", ranks=ranks, steps_per_epoch=epoch_steps, step=0, config=config))
        for i in range(1, steps + 1):
            phases = dict(data=1, forward=4, backward=8, exchange=0, factor=2, decompose=0, precondition=0, update=0.5)
            file.write(line(kind="step", step=i, epoch=(i - 1) // epoch_steps, time_s=i / 10, loss=1000 / (i + 500), lr=0.1, images_per_s=640,
                            gradients=1000 * (ranks - 1), **phases))
            if kfac and i % kfac == 0:
                layers = [dict(name=f"layer<{j}>", cosine=1 / (j + 1), a_min=0.001, a_max=10, g_min=0.1, g_max=1, condition=100, **(dict(nu=(j + 1) / 4) if j else {})) for j in range(3)]
                loads = [dict(rank=r, work=1, share=1 / ranks, solve_ms=2 + r) for r in range(ranks)]
                file.write(line(kind="kfac", step=i, epoch=(i - 1) // epoch_steps, time_s=i / 10, nu=0.25, damping=0.003, layers=layers, loads=loads))
            if gossip and i % 10 == 0:
                file.write(line(kind="consensus", step=i, epoch=(i - 1) // epoch_steps, time_s=i / 10, distance=1 / i, norm=2))
            if i % epoch_steps == 0:
                file.write(line(kind="epoch", step=i, epoch=i // epoch_steps - 1, time_s=i / 10, loss=2, lr=0.1, images_per_s=640))
                average = dict(ema_loss=250 / i, ema_top1=0.75 * i / steps, ema_top5=0.95) if ema else {}
                file.write(line(kind="eval", step=i, epoch=i // epoch_steps - 1, time_s=i / 10, loss=500 / i, top1=top1 * i / steps, top5=0.9, **average))
        if ranks > 1 and not kfac:
            file.write(line(kind="load", step=steps, epoch=3, time_s=steps / 10, ranks=[dict(forward=4 + r, gradients=1000 * (r + 1)) for r in range(ranks)]))
        if end:
            file.write(line(kind="end", status=end, error=None, steps=steps, time_s=steps / 10, target_s=target))


def report(*arguments):
    result = subprocess.run([descent, "report", *arguments, "--html", "page.html"], capture_output=True, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stderr
    assert [name for name in os.listdir(".") if name.endswith(".new")] == []


def center(page, selector, across=0.5, down=0.5):
    box = page.evaluate(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center', behavior: 'instant'}});"
                        "const r = e.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()")
    return box[0] + across * box[2], box[1] + down * box[3]


def text(page, selector):
    return page.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")


def drawn(page, chart):
    return page.evaluate(f"[...document.querySelectorAll('[data-chart={chart}] path.curve')].map(p => [p.dataset.run, Number(p.dataset.points)])")


def click(page, x, y, count=1):
    page.mouse("mousePressed", x, y, button="left", clickCount=count)
    page.mouse("mouseReleased", x, y, button="left", clickCount=count)


def pixels(path):
    """The bytes of a PNG's rows, unpacked but with their filters: enough to compare and to see that something is drawn."""
    with open(path, "rb") as file:
        content, at, out = file.read(), 8, b""
    while at < len(content):
        length = int.from_bytes(content[at:at + 4], "big")
        if content[at + 4:at + 8] == b"IDAT":
            out += content[at + 8:at + 8 + length]
        at += 12 + length
    return zlib.decompress(out)


def check_values(page):
    """Six runs: the table, the curves, hover, zoom, runs on and off, axes."""
    assert text(page, "#table thead th")[:5] == ["run", "status", "best top-1", "at epoch", "last top-1"]
    assert [row.split("|")[0] for row in page.evaluate("[...document.querySelectorAll('#table tbody tr')].map(r => [...r.cells].map(c => c.textContent).join('|'))")] == \
        ["adam", "gossip", "kfac", "odd", "sgd", "short"]
    cells = page.evaluate("Object.fromEntries([...document.querySelectorAll('#table tbody tr')].map(r => [r.cells[0].textContent, [...r.cells].map(c => c.textContent)]))")
    assert cells["sgd"][1:5] == ["done", "50.00 %", "4", "50.00 %"] and cells["sgd"][7] == "40 s", cells["sgd"]
    assert cells["short"][1] == "died" and cells["odd"][1] == "stopped"
    assert "adam" in cells["adam"] and "sgp" in cells["gossip"]
    assert drawn(page, "top1") == [[n, 4] for n in ("adam", "gossip", "kfac", "odd", "sgd", "short")]
    assert dict(drawn(page, "train_loss"))["sgd"] == 400

    page.mouse("mouseMoved", *center(page, "[data-chart=val_loss] svg", 0.985))  # the last evaluation
    lines = text(page, "#tip b, #tip td")
    assert page.evaluate("getComputedStyle(document.getElementById('tip')).visibility") == "visible"
    assert lines[0] == "epoch 4" and dict(zip(lines[1::2], lines[2::2]))["sgd"] == "1.250", lines
    page.mouse("mouseMoved", 1, 1)
    assert page.evaluate("getComputedStyle(document.getElementById('tip')).visibility") == "hidden"

    before = text(page, "[data-chart=lr] .x-tick")
    x0, y = center(page, "[data-chart=train_loss] svg", 0.4)
    x1, _ = center(page, "[data-chart=train_loss] svg", 0.6)
    page.mouse("mouseMoved", x0, y)
    page.mouse("mousePressed", x0, y, button="left", clickCount=1)
    page.mouse("mouseMoved", x1, y, button="left")
    page.mouse("mouseReleased", x1, y, button="left", clickCount=1)
    zoomed = text(page, "[data-chart=lr] .x-tick")
    assert zoomed != before and all(1 < float(v) < 3.2 for v in zoomed), (before, zoomed)
    page.evaluate("document.getElementById('reset').click()")
    page.frame()
    assert text(page, "[data-chart=lr] .x-tick") == before

    click(page, *center(page, '#table tr[data-run="runs/sgd"]'))
    assert [name for name, _ in drawn(page, "top1")] == ["adam", "gossip", "kfac", "odd", "short"]
    page.evaluate("document.getElementById('none').click()")
    page.frame()
    assert drawn(page, "top1") == [] and text(page, "[data-chart=top1] .empty") == ["nothing to show"]
    page.evaluate("document.getElementById('all').click()")
    page.frame()
    assert len(drawn(page, "top1")) == 6

    page.evaluate("document.querySelector('[data-key=time]').click()")
    page.frame()
    assert text(page, "[data-chart=top1] .x-label") == ["seconds"] and "20" in text(page, "[data-chart=top1] .x-tick")
    page.evaluate("document.querySelector('[data-key=step]').click()")
    page.frame()
    assert text(page, "[data-chart=top1] .x-label") == ["steps"] and "200" in text(page, "[data-chart=top1] .x-tick")


def check_sections(page):
    """Phases, K-FAC, ranks and consensus."""
    parts = page.evaluate("Object.fromEntries([...document.querySelectorAll('#phase-bars [data-bar=sgd] i')].map(i => [i.dataset.part, Number(i.dataset.value)]))")
    assert parts == {"data": 1, "forward": 4, "backward": 8, "factor": 2, "update": 0.5}, parts
    assert page.evaluate("[...document.querySelectorAll('[data-heat]')].map(h => h.dataset.heat)") == ["cosine", "nu", "condition", "a_max", "a_min", "g_max", "g_min"]
    assert page.evaluate("[document.querySelector('[data-heat=cosine] canvas').width, document.querySelector('[data-heat=cosine] canvas').height]") == [40, 3]
    page.mouse("mouseMoved", *center(page, "[data-heat=cosine] canvas", 0.01, 0.5))
    assert text(page, "#tip b, #tip div") == ["layer<1>", "step 10: 0.5"], text(page, "#tip b, #tip div")
    for row, value in (0.1, "layer<0>: 0.25"), (0.5, "layer<1>: 0.5"), (0.9, "layer<2>: 0.75"):  # the first has that of the line
        page.mouse("mouseMoved", *center(page, "[data-heat=nu] canvas", 0.99, row))
        shown = text(page, "#tip b, #tip div")
        assert shown[0] + ": " + shown[1].split(": ")[1] == value, shown
    assert [name for name, _ in drawn(page, "nu")] == ["kfac"] and [name for name, _ in drawn(page, "distance")] == ["gossip"]
    bars = text(page, "#rank-bars .bar .sum")
    assert bars == ["1 kB", "1 kB", "4 ms", "5 ms", "1 kB", "2 kB", "50.0 %", "50.0 %", "2 ms", "3 ms"], bars


def check_average_and_target(page):
    """The average of the weights has curves beside the weights' own, dashed; the time to the target has a column."""
    write_run(b"pair/plain", 400, target=30.5)
    write_run(b"pair/ema", 400, ema=True)
    report("pair")
    page.open("page.html")
    titles = text(page, "#table thead th")
    rows = [dict(zip(titles, row)) for row in page.evaluate("[...document.querySelectorAll('#table tbody tr')].map(r => [...r.cells].map(c => c.textContent))")]
    assert [(row["run"], row["best top-1"], row["last top-1"], row["EMA top-1"], row["to target"]) for row in rows] == \
        [("ema", "75.00 %", "50.00 %", "75.00 %", "–"), ("plain", "50.00 %", "50.00 %", "–", "31 s")], rows
    for chart in "top1", "top5", "val_loss":
        assert drawn(page, chart) == [["ema", 4], ["ema (EMA)", 4], ["plain", 4]], drawn(page, chart)
    assert page.evaluate("[...document.querySelectorAll('[data-chart=top1] path.curve')].map(p => getComputedStyle(p).strokeDasharray !== 'none')") == [False, True, False]
    assert drawn(page, "train_loss") == [["ema", 400], ["plain", 400]]
    page.mouse("mouseMoved", *center(page, "[data-chart=top1] svg", 0.985))
    lines = text(page, "#tip b, #tip td")
    assert lines == ["epoch 4", "ema (EMA)", "75.00 %", "ema", "50.00 %", "plain", "50.00 %"], lines
    report("pair", "--target", "37.5")
    page.open("page.html")
    titles = text(page, "#table thead th")
    assert text(page, f"#table tbody td:nth-child({titles.index('to 37.5 %') + 1})") == ["20 s", "30 s"]


def check_names(page):
    """A name that would end the script, with quotes, control characters and bytes that are not UTF-8."""
    name = b"</script><img src=x onerror=document.title=1>\n\x1b\xff\"'"
    write_run(name, 40)
    report(name)
    page.open("page.html")
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert text(page, "#table tbody td")[0] == "</script><img src=x onerror=document.title=1>??\ufffd\"'"
    assert page.evaluate("document.title").startswith("descent report: ")


def check_large(page):
    """100,000 steps: a small page whose means are right."""
    write_run(b"large", 100000)
    report(b"large")
    assert os.path.getsize("page.html") < 400000, os.path.getsize("page.html")
    page.open("page.html")
    assert drawn(page, "train_loss") == [["large", 1000]]
    mean = sum(1000 / (i + 500) for i in range(1, 101)) / 100
    shown = page.evaluate("runs[0].steps.loss[0]")
    assert abs(shown - mean) < 1e-5, (shown, mean)


def main():
    write_run(b"runs/sgd", 400)
    write_run(b"runs/adam", 400, optimizer="adam")
    write_run(b"runs/kfac", 400, kfac=10, ranks=2)
    write_run(b"runs/gossip", 400, gossip=True, ranks=2)
    write_run(b"runs/short", 200, end=None, top1=0.25)
    write_run(b"runs/odd", 400, end="interrupted")
    report("runs")
    with browser.Browser(program) as page:
        page.open("page.html")
        check_values(page)
        check_sections(page)
        pictures = {}
        for theme in ("light", "dark"):
            page.open("page.html", "#theme=" + theme)
            page.screenshot(theme + ".png")
            pictures[theme] = pixels(theme + ".png")
            color = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, color[4:-1].split(","))) > 384) == (theme == "light"), color
            assert len(set(pictures[theme][::7])) > 30, theme + ": nothing is drawn"
        assert pictures["light"] != pictures["dark"]
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        page.open("page.html")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        check_average_and_target(page)
        check_names(page)
        check_large(page)
        assert page.errors == [], page.errors


main()
