// Figures of the report page: line charts (SVG) and heat maps (canvas), without any library.
'use strict';

const SVG = 'http://www.w3.org/2000/svg';

/** Makes an element; children are elements or texts, which are never read as HTML. */
function make(tag, attributes = {}, ...children) {
  const svg = ['svg', 'g', 'path', 'line', 'rect', 'circle', 'text', 'clipPath'].includes(tag);
  const element = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes))
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? '' : value);
  element.append(...children);
  return element;
}

// ---- numbers ----

/** Four digits, without zeros at the end. */
function short(value) {
  if (value === null || value === undefined || !isFinite(value)) return '–';
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(2).replace(/\.?0+e/, 'e').replace('e+', 'e');
  return String(Number(value.toPrecision(4)));
}

/** Four digits, with the zeros at the end, for values below each other. */
function digits(value) {
  if (value === null || value === undefined || !isFinite(value)) return '–';
  const size = Math.abs(value);
  return size !== 0 && (size >= 1e4 || size < 1e-3) ? short(value) : value.toPrecision(4);
}

function percent(value) {
  return value === null || value === undefined ? '–' : (100 * value).toFixed(2) + ' %';
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  if (seconds < 60) return seconds.toFixed(seconds < 9.95 ? 1 : 0) + ' s';
  if (seconds < 3600) return Math.floor(seconds / 60) + ' min ' + String(Math.floor(seconds % 60)).padStart(2, '0') + ' s';
  return Math.floor(seconds / 3600) + ' h ' + String(Math.floor(seconds % 3600 / 60)).padStart(2, '0') + ' min';
}

function bytes(value) {
  for (const unit of ['B', 'kB', 'MB', 'GB', 'TB']) {
    if (value < 1000 || unit === 'TB') return short(Number(value.toPrecision(3))) + ' ' + unit;
    value /= 1000;
  }
}

/** Round numbers from low to high, about `count` of them. */
function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find(factor => factor * power >= raw * 0.999) * power;
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) out.push(Number((i * step).toPrecision(12)));
  return out;
}

/** Powers of ten from low to high; with few of them also 2 and 5 times these. */
function logTicks(low, high) {
  const out = [], decades = Math.log10(high / low), each = Math.max(1, Math.ceil(decades / 6));
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p += each)
    for (const factor of decades < 1 ? [1, 1.5, 2, 3, 4, 5, 7] : decades < 2.5 ? [1, 2, 5] : [1]) {
      const value = factor * 10 ** p;
      if (value >= low * 0.999 && value <= high * 1.001) out.push(Number(value.toPrecision(6)));
    }
  return out;
}

// ---- the small window beside the pointer ----

const tip = {
  show(event, ...content) {
    const element = document.getElementById('tip');
    element.replaceChildren(...content);
    element.style.visibility = 'visible';
    const box = element.getBoundingClientRect(), gap = 14;
    const left = event.clientX + gap + box.width > innerWidth ? event.clientX - gap - box.width : event.clientX + gap;
    const top = Math.min(event.clientY + gap, innerHeight - box.height - 4);
    element.style.left = Math.max(4, left) + 'px';
    element.style.top = Math.max(4, top) + 'px';
  },
  hide() { document.getElementById('tip').style.visibility = 'hidden'; },
};

// ---- line charts ----

/** Exponential smoothing that is right from the first value on. */
function smooth(values, weight) {
  let sum = 0, mass = 0;
  return values.map(value => {
    if (value === null || value === undefined) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

/** The index of the point nearest to x; xs rises. */
function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

/**
 * A card with a line chart. `options`: title, format(value), log (start with a logarithmic axis), smoothed, and
 * series(): what to draw now, as [{name, color, xs, ys, dashed}]. `view` is shared by the charts that zoom together: it has
 * x (its label and format), extent() (the range of x of all), domain (null: everything), smoothing, and charts, to
 * which this one adds itself.
 */
class LineChart {
  constructor(parent, view, options) {
    Object.assign(this, {view, options, log: options.log || false, margin: {left: 52, right: 14, top: 10, bottom: 30}});
    this.note = make('small');
    this.svg = make('svg', {class: 'chart', role: 'img', 'aria-label': options.title});
    const logButton = make('button', {type: 'button', 'aria-pressed': String(this.log), style: 'padding:0 7px;font-size:11px', title: 'Logarithmic axis',
      onclick: () => { this.log = !this.log; logButton.setAttribute('aria-pressed', String(this.log)); this.draw(); }}, 'log');
    parent.append(make('div', {class: 'card', 'data-chart': options.key}, make('h3', {}, options.title, this.note, logButton), this.svg));
    this.svg.addEventListener('pointermove', event => this.move(event));
    this.svg.addEventListener('pointerleave', () => { if (!this.from) { tip.hide(); this.view.cross(null); } });
    this.svg.addEventListener('pointerdown', event => { this.from = this.place(event); this.svg.setPointerCapture(event.pointerId); });
    this.svg.addEventListener('pointerup', event => this.release(event));
    this.svg.addEventListener('dblclick', () => this.view.zoom(null));
    new ResizeObserver(() => this.draw()).observe(this.svg);
    view.charts.push(this);
  }

  /** The ranges of both axes. A few values far above all others, as of a run that diverged, do not set the scale. */
  ranges() {
    let low = Infinity, high = -Infinity, xlow = Infinity, xhigh = -Infinity;
    const all = [], domain = this.view.domain;
    for (const s of this.series)
      for (let i = 0; i < s.xs.length; i++) {
        const x = s.xs[i], y = s.ys[i];
        if (x === null || y === null || y === undefined || (this.log && y <= 0)) continue;
        xlow = Math.min(xlow, x);
        xhigh = Math.max(xhigh, x);
        if (domain && (x < domain[0] || x > domain[1])) continue;
        all.push(y);
        low = Math.min(low, y);
        high = Math.max(high, y);
      }
    if (all.length === 0) return null;
    this.cut = false;
    if (!this.log && all.length > 3) {
      all.sort((a, b) => a - b);
      const usual = all[Math.floor(0.97 * (all.length - 1))];
      if (usual > 0 && high > 5 * usual) { high = 1.3 * usual; this.cut = true; }
    }
    if (low === high) { const d = Math.abs(low) * 0.1 || 1; low = this.log ? low / 1.1 : low === 0 ? 0 : low - d; high = this.log ? high * 1.1 : high + d; }
    if (!this.log) {
      const pad = 0.04 * (high - low);
      low = low >= 0 && low - pad < 0 ? 0 : low - pad;
      high += pad;
    }
    if (this.view.extent) [xlow, xhigh] = this.view.extent();
    if (domain) [xlow, xhigh] = domain;
    if (xlow === xhigh) { xlow -= 0.5; xhigh += 0.5; }
    return {low, high, xlow, xhigh};
  }

  x(value) { return this.margin.left + (value - this.range.xlow) / (this.range.xhigh - this.range.xlow) * this.inner; }
  y(value) {
    const {low, high} = this.range;
    const share = this.log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    return this.height - this.margin.bottom - share * (this.height - this.margin.top - this.margin.bottom);
  }

  path(xs, ys) {
    let out = '', pen = false, points = 0;
    for (let i = 0; i < xs.length; i++) {
      const y = ys[i];
      if (y === null || y === undefined || xs[i] === null || (this.log && y <= 0)) { pen = false; continue; }
      const py = Math.max(-1e4, Math.min(1e4, this.y(y)));
      out += (pen ? 'L' : 'M') + this.x(xs[i]).toFixed(1) + ' ' + py.toFixed(1);
      pen = true;
      points++;
    }
    return [out, points];
  }

  draw() {
    const box = this.svg.getBoundingClientRect();
    if (box.width === 0) return;
    this.width = box.width;
    this.height = box.height;
    this.inner = this.width - this.margin.left - this.margin.right;
    this.series = this.options.series().filter(s => s.xs && s.xs.length > 0);
    this.range = this.ranges();
    this.svg.replaceChildren();
    this.note.textContent = '';
    if (!this.range) {
      this.svg.append(make('text', {class: 'empty', x: this.width / 2, y: this.height / 2, 'text-anchor': 'middle'}, 'nothing to show'));
      return;
    }
    const dashed = this.series.some(s => s.dashed);
    this.note.textContent = [dashed && 'dashed: average of the weights', this.cut && 'higher values are cut off'].filter(Boolean).join('; ');
    this.drawAxes();
    const id = 'clip-' + this.options.key, area = make('g', {'clip-path': `url(#${id})`});
    const top = this.margin.top, height = this.height - top - this.margin.bottom;
    this.svg.append(make('clipPath', {id}, make('rect', {x: this.margin.left, y: top - 2, width: this.inner + 2, height: height + 4})), area);
    for (const s of this.series) this.drawSeries(area, s);
    this.overlay = make('g');
    this.svg.append(this.overlay);
  }

  drawAxes() {
    const {low, high, xlow, xhigh} = this.range, bottom = this.height - this.margin.bottom, right = this.width - this.margin.right;
    for (const value of this.log ? logTicks(low, high) : ticks(low, high, 5)) {
      const y = this.y(value);
      this.svg.append(make('line', {class: 'grid-line', x1: this.margin.left, x2: right, y1: y, y2: y}),
        make('text', {x: this.margin.left - 7, y: y + 3.5, 'text-anchor': 'end'}, (this.options.tick || short)(value)));
    }
    for (const value of ticks(xlow, xhigh, Math.max(2, this.inner / 85)))
      this.svg.append(make('text', {x: this.x(value), y: bottom + 15, 'text-anchor': 'middle', class: 'x-tick'}, short(value)));
    this.svg.append(make('line', {class: 'axis', x1: this.margin.left, x2: right, y1: bottom, y2: bottom}),
      make('text', {x: right, y: this.height - 3, 'text-anchor': 'end', class: 'x-label'}, this.view.x.label));
  }

  drawSeries(area, s) {
    const weight = this.options.smoothed ? this.view.smoothing : 0;
    s.shown = weight > 0 ? smooth(s.ys, weight) : s.ys;
    if (weight > 0) area.append(make('path', {class: 'raw', stroke: s.color, d: this.path(s.xs, s.ys)[0]}));
    const [d, points] = this.path(s.xs, s.shown);
    area.append(make('path', {class: s.dashed ? 'curve dashed' : 'curve', stroke: s.color, d, 'data-run': s.name, 'data-points': points}));
    if (points <= 40)
      s.xs.forEach((x, i) => {
        if (x !== null && s.shown[i] !== null && s.shown[i] !== undefined && !(this.log && s.shown[i] <= 0))
          area.append(make('circle', {cx: this.x(x), cy: Math.max(-1e4, this.y(s.shown[i])), r: points === 1 ? 3.5 : 2.2,
            fill: s.dashed ? 'var(--card)' : s.color, stroke: s.dashed ? s.color : null}));
      });
  }

  /** The value of x under the pointer, inside of the axes. */
  place(event) {
    if (!this.range) return null;
    const left = event.clientX - this.svg.getBoundingClientRect().left;
    const share = Math.min(1, Math.max(0, (left - this.margin.left) / this.inner));
    return this.range.xlow + share * (this.range.xhigh - this.range.xlow);
  }

  move(event) {
    const x = this.place(event);
    if (x === null) return;
    this.view.cross(x);
    if (this.from !== undefined && this.from !== null) {
      const a = this.x(Math.min(x, this.from)), b = this.x(Math.max(x, this.from));
      this.overlay.append(make('rect', {class: 'select', x: a, y: this.margin.top, width: b - a, height: this.height - this.margin.top - this.margin.bottom}));
    }
    const rows = this.points(x).sort((p, q) => q.value - p.value);
    if (rows.length === 0) return tip.hide();
    const at = rows.reduce((best, row) => Math.abs(row.x - x) < Math.abs(best.x - x) ? row : best).x;
    tip.show(event, make('b', {}, this.view.x.name + ' ' + this.view.x.format(at)),
      make('table', {}, ...rows.slice(0, 16).map(row => make('tr', {},
        make('td', {class: 'text'}, make('span', {class: 'swatch', style: 'background:' + row.color}), row.name),
        make('td', {}, this.options.format(row.value))))));
  }

  /** The point of every curve that is nearest to x. */
  points(x) {
    const out = [], {xlow, xhigh} = this.range;
    for (const s of this.series || []) {
      const xs = s.xs, i = nearest(xs, x), value = s.ys[i];
      if (value === null || value === undefined || xs[i] < xlow || xs[i] > xhigh || Math.abs(xs[i] - x) > 0.08 * (xhigh - xlow)) continue;
      out.push({name: s.name, color: s.color, x: xs[i], value, shown: s.shown[i]});
    }
    return out;
  }

  cross(x) {
    if (!this.overlay || !this.range) return;
    this.overlay.replaceChildren();
    if (x === null || x < this.range.xlow || x > this.range.xhigh) return;
    this.overlay.append(make('line', {class: 'cross', x1: this.x(x), x2: this.x(x), y1: this.margin.top, y2: this.height - this.margin.bottom}));
    for (const p of this.points(x))
      if (!(this.log && p.shown <= 0)) this.overlay.append(make('circle', {cx: this.x(p.x), cy: Math.max(-1e4, this.y(p.shown)), r: 4, fill: p.color, stroke: 'var(--card)', 'stroke-width': 1.5}));
  }

  release(event) {
    const from = this.from, to = this.place(event);
    this.from = undefined;
    if (from === undefined || from === null || !this.range) return;
    if (Math.abs(this.x(to) - this.x(from)) > 6) this.view.zoom([Math.min(from, to), Math.max(from, to)]);
    else this.view.cross(to);
  }
}

/** What charts share: the axis of x and the zoom. */
function makeView(x) {
  return {
    x, domain: null, smoothing: 0, charts: [],
    draw() { for (const chart of this.charts) chart.draw(); },
    zoom(domain) { this.domain = domain; tip.hide(); this.draw(); if (this.zoomed) this.zoomed(); },
    cross(value) { for (const chart of this.charts) chart.cross(value); },
  };
}

// ---- heat maps ----

const COLORS = [[30, 20, 70], [60, 50, 140], [40, 105, 160], [30, 155, 140], [110, 200, 100], [250, 230, 90]];

/** The colour of a share from 0 to 1, from dark blue over green to yellow. */
function heatColor(share) {
  const at = Math.min(0.9999, Math.max(0, share)) * (COLORS.length - 1), i = Math.floor(at), t = at - i;
  return COLORS[i].map((c, k) => Math.round(c + t * (COLORS[i + 1][k] - c)));
}

/** A card with a heat map: rows[layer][column], null where there is no value. `options`: title, names, columns (their
 * labels), log, note. */
function heatMap(parent, rows, options) {
  const known = rows.flat().filter(v => v !== null && isFinite(v) && (!options.log || v > 0));
  if (known.length === 0) return;
  const scale = options.log ? Math.log10 : v => v;
  let low = Infinity, high = -Infinity;
  for (const v of known) { low = Math.min(low, scale(v)); high = Math.max(high, scale(v)); }
  const share = v => high > low ? (scale(v) - low) / (high - low) : 0.5;
  const count = rows[0].length, canvas = make('canvas', {width: count, height: rows.length, 'aria-label': options.title, role: 'img'});
  const context = canvas.getContext('2d'), image = context.createImageData(count, rows.length);
  rows.forEach((row, r) => row.forEach((v, c) => {
    const shown = v !== null && isFinite(v) && (!options.log || v > 0);
    image.data.set(shown ? [...heatColor(share(v)), 255] : [128, 128, 128, 60], 4 * (r * count + c));
  }));
  context.putImageData(image, 0, 0);
  const height = Math.max(90, Math.min(420, rows.length * (rows.length > 30 ? 8 : 16)));
  canvas.style.height = height + 'px';
  const each = Math.ceil(rows.length / Math.floor(height / 11));
  const names = make('div', {class: 'names', style: `height:${height}px`},
    ...options.names.filter((_, i) => i % each === 0).map(name => make('span', {title: name}, name)));
  canvas.addEventListener('pointermove', event => {
    const box = canvas.getBoundingClientRect();
    const c = Math.min(count - 1, Math.floor((event.clientX - box.left) / box.width * count));
    const r = Math.min(rows.length - 1, Math.floor((event.clientY - box.top) / box.height * rows.length));
    if (r >= 0 && c >= 0) tip.show(event, make('b', {}, options.names[r]), make('div', {}, options.columns[c] + ': ' + short(rows[r][c])));
  });
  canvas.addEventListener('pointerleave', () => tip.hide());
  const ramp = make('canvas', {width: 64, height: 1}), strip = ramp.getContext('2d');
  for (let i = 0; i < 64; i++) { strip.fillStyle = `rgb(${heatColor(i / 63)})`; strip.fillRect(i, 0, 1, 1); }
  const label = v => short(options.log ? 10 ** v : v);
  parent.append(make('div', {class: 'card', 'data-heat': options.key}, make('h3', {}, options.title, make('small', {}, options.log ? 'logarithmic' : options.note || '')),
    make('div', {class: 'heat'}, names, canvas), make('div', {class: 'scale'}, label(low), ramp, label(high))));
}
