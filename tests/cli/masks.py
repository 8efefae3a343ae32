"""Work on images for masks.sh; needs nothing but Python.

masks.py draw DIR COUNT WIDTH HEIGHT [colours]   noisy bright discs on dark ground, DIR/image/N.png, and where they are (255,
                                                 elsewhere 0), DIR/label/N.png
masks.py learnt EVAL.json PIXELS                 the error is far below that of the larger class; Dice and IoU are right
masks.py agree EVAL.json PREDICTED.jsonl LABELS  the masks have the confusion matrix and the shares that are told
masks.py cut IMAGE ROWS DIR                      DIR/N.png, the image in tiles of this many rows; the last one may overlap
masks.py joined MASK ROWS DIR                    the mask consists of those of the tiles, of which the earlier ones count
masks.py values MASK                             prints the values in it
masks.py segments EVAL.json PREDICTED.jsonl LABELS   V_rand is that of the masks, or that of a better threshold
masks.py changed DIR OTHER SHARE VALUE           OTHER is DIR with this share of the brightness, and VALUE in place of 255 in the masks
masks.py same EVAL.json OTHER.json               pixels and segments are the same
masks.py pages TIFF IMAGE...                     a TIFF with these grey images as its pages; float:IMAGE has floats as its pixels
"""
import collections
import json
import math
import pathlib
import random
import struct
import sys
import zlib


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write(path, rows, colours=False):
    width = len(rows[0]) // (3 if colours else 1)
    head = struct.pack(">IIBBBBB", width, len(rows), 8, 2 if colours else 0, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows), 1)
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b""))


def read(path):
    """The rows of an 8-bit grey PNG."""
    data, at, text = pathlib.Path(path).read_bytes(), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            width, height, *rest = struct.unpack(">IIBBBBB", data[at + 8:at + 21])
            assert rest == [8, 0, 0, 0, 0], path
        if kind == b"IDAT":
            text += data[at + 8:at + 8 + length]
        at += 12 + length
    raw, rows, above = zlib.decompress(text), [], [0] * width
    for y in range(height):
        line, row = raw[y * (width + 1):(y + 1) * (width + 1)], []
        for x, value in enumerate(line[1:]):
            a, b, c = row[x - 1] if x else 0, above[x], above[x - 1] if x else 0
            nearest = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
            row.append((value + [0, a, b, (a + b) // 2, nearest][line[0]]) & 255)
        rows.append(row)
        above = row
    return rows


def draw(folder, count, width, height, colours=None):
    draws, width, height = random.Random(7), int(width), int(height)
    for n in range(int(count)):
        discs = [(draws.uniform(0, width), draws.uniform(0, height), draws.uniform(5, 9)) for _ in range(3)]
        image, label = [], []
        for y in range(height):
            inside = [any(math.hypot(x - a, y - b) < r for a, b, r in discs) for x in range(width)]
            values = [min(255, max(0, int(draws.gauss(150 if i else 90, 25)))) for i in inside]
            image.append([k for v in values for k in ((v, v // 2, 255 - v) if colours else (v,))])
            label.append([255 if i else 0 for i in inside])
        write(f"{folder}/image/{n}.png", image, colours)
        write(f"{folder}/label/{n}.png", label)


def learnt(evaluation, count):
    e = json.load(open(evaluation))
    pixels, matrix = [c["images"] for c in e["classes"]], e["confusion_matrix"]
    larger = 1 - max(pixels) / sum(pixels)
    assert [c["class"] for c in e["classes"]] == ["0", "255"] and sum(pixels) == int(count), pixels
    assert 0.1 < larger < 0.4 and 1 - e["top1"] < larger / 3, (larger, e["top1"])
    for c in range(2):
        both, either = matrix[c][c], sum(matrix[c]) + matrix[0][c] + matrix[1][c]
        assert abs(e["classes"][c]["dice"] - 2 * both / either) < 1e-6 and e["classes"][c]["dice"] > 0.8, e["classes"][c]
        assert abs(e["classes"][c]["iou"] - both / (either - both)) < 1e-6, e["classes"][c]


def agree(evaluation, predicted, labels):
    matrix, expected = [[0, 0], [0, 0]], json.load(open(evaluation))["confusion_matrix"]
    for line in map(json.loads, open(predicted)):
        mask, label = read(line["mask"]), read(f"{labels}/{pathlib.Path(line['file']).name}")
        assert len(mask) == len(label) and len(mask[0]) == len(label[0]), line
        for own, right in zip(mask, label):
            for a, b in zip(own, right):
                matrix[(0, 255).index(b)][(0, 255).index(a)] += 1
        for c, value in zip(line["classes"], (0, 255)):
            share = sum(row.count(value) for row in mask) / len(mask) / len(mask[0])
            assert c["class"] == str(value) and abs(c["share"] - share) < 1e-8, (line, share)
    assert matrix == expected, (matrix, expected)


def starts(height, rows):
    return [min(y, height - rows) for y in range(0, height, rows)]


def cut(image, rows, folder):
    image, rows = read(image), int(rows)
    for n, y in enumerate(starts(len(image), rows)):
        write(f"{folder}/{n}.png", image[y:y + rows])


def joined(mask, rows, folder):
    mask, rows, own = read(mask), int(rows), []
    for n, y in enumerate(starts(len(mask), rows)):
        own += read(f"{folder}/{n}.png")[len(own) - y:]
    assert own == mask, (own, mask)


def connected(rows):
    """The segment of every pixel of value 255, by its place."""
    found, count = {}, 0
    for y, row in enumerate(rows):
        for x, value in enumerate(row):
            if value != 255 or (y, x) in found:
                continue
            waiting, count = [(y, x)], count + 1
            while waiting:
                a, b = waiting.pop()
                if 0 <= a < len(rows) and 0 <= b < len(row) and rows[a][b] == 255 and (a, b) not in found:
                    found[a, b] = count
                    waiting += [(a + 1, b), (a - 1, b), (a, b + 1), (a, b - 1)]
    return found


def rand_score(mask, label):
    found, truth = connected(mask), connected(label)

    def squares(keys):
        return sum(n * n for n in collections.Counter(keys).values())
    both = squares((found[p], truth[p]) for p in truth if p in found)
    return 2 * both / (squares(found[p] for p in truth if p in found) + squares(truth.values()))


def segments(evaluation, predicted, labels):
    e, scores = json.load(open(evaluation)), []
    for line in map(json.loads, open(predicted)):
        scores.append(rand_score(read(line["mask"]), read(f"{labels}/{pathlib.Path(line['file']).name}")))
    mean, best = sum(scores) / len(scores), e["v_rand"]
    assert e["pictures"] == len(scores) and round(10 * e["v_rand_threshold"]) in range(1, 10), e["v_rand_threshold"]
    if abs(e["v_rand_threshold"] - 0.5) < 1e-6: # what the masks are made with
        assert abs(best - mean) < 1e-8, (best, mean)
    assert 0.5 < mean < best + 1e-8 and best <= 1, (best, mean)


def same(one, other):
    one, other = json.load(open(one)), json.load(open(other))
    for key in ("confusion_matrix", "v_rand", "v_rand_threshold", "pictures", "images"):
        assert one[key] == other[key], (key, one[key], other[key])


def changed(folder, other, share, value):
    for path in pathlib.Path(folder).glob("*/*.png"):
        label = path.parent.name == "label"
        rows = [[(int(value) if v else 0) if label else int(v * float(share)) for v in row] for row in read(path)]
        write(f"{other}/{path.parent.name}/{path.name}", rows)


def values(mask):
    print(*sorted({v for row in read(mask) for v in row}))


def pages(path, *images):
    data = b"II*\0" + struct.pack("<I", 8)
    for n, image in enumerate(images):
        rows, bits = read(image.removeprefix("float:")), 32 if image.startswith("float:") else 8
        pixels = b"".join(struct.pack(f"<{len(row)}f", *row) if bits == 32 else bytes(row) for row in rows)
        at = len(data) + 2 + 12 * 10 + 4
        entries = {256: len(rows[0]), 257: len(rows), 258: bits, 259: 1, 262: 1, 273: at, 277: 1, 278: len(rows), 279: len(pixels),
                   339: 3 if bits == 32 else 1}
        data += struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", key, 4, 1, v) for key, v in entries.items())
        data += struct.pack("<I", at + len(pixels) if n + 1 < len(images) else 0) + pixels
    pathlib.Path(path).write_bytes(data)


{"draw": draw, "learnt": learnt, "agree": agree, "cut": cut, "joined": joined, "values": values, "segments": segments,
 "same": same, "changed": changed, "pages": pages}[sys.argv[1]](*sys.argv[2:])
