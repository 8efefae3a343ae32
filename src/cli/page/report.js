// The report page: reads the data that the program put into it, and fills the sections.

const data = JSON.parse(document.getElementById('data').textContent);
const runs = data.runs;
const $ = id => document.getElementById(id);

// ---- runs: names, colours, on and off ----

const PALETTE = ['#3a73e8', '#e8792b', '#27a06b', '#d4469a', '#8e66e0', '#bb9410', '#17a2bd', '#db4c53', '#7a8aa0', '#9b6b3f'];

/** Names without the directories that all of them share. */
function shortNames(names) {
  if (names.length < 2) return names;
  const parts = names.map(name => name.split('/'));
  let shared = 0;
  while (parts.every(p => p.length > shared + 1 && p[shared] === parts[0][shared])) shared++;
  return parts.map(p => p.slice(shared).join('/'));
}

const labels = shortNames(runs.map(run => run.name));
runs.forEach((run, i) => {
  run.label = labels[i];
  if (!run.steps || run.steps.step.length < 2) run.steps = run.by_epoch || run.steps; // few steps were logged
  run.on = true;
  run.color = i < PALETTE.length ? PALETTE[i] : `hsl(${(i * 137.5) % 360} 55% 52%)`;
});

function setRuns(change) {
  runs.forEach(change);
  drawTable();
  drawAll();
}

// ---- the table ----

const rate = v => v === null ? '–' : Math.round(v).toLocaleString('en');
const state = {sort: null, down: false, x: 'epoch'};

const differing = [...new Set(runs.flatMap(run => Object.keys(run.differs)))];
const columns = [
  {title: 'run', text: true, value: run => run.label},
  {title: 'status', text: true, value: run => run.status},
  {title: 'best loss', value: run => run.best_loss, format: digits, best: Math.min, rare: true},
  {title: 'best top-1', value: run => run.pixel_error === null ? run.best_top1 : null, format: percent, best: Math.max},
  {title: 'at epoch', value: run => run.best_epoch, format: short},
  {title: 'last top-1', value: run => run.pixel_error === null ? run.top1 : null, format: percent, best: Math.max},
  {title: 'pixel error', value: run => run.pixel_error, format: percent, best: Math.min, rare: true},
  {title: 'EMA top-1', value: run => run.ema_top1, format: percent, best: Math.max, rare: true},
  {title: 'loss', value: run => run.loss, format: digits, best: Math.min},
  {title: 'epochs', value: run => run.epochs, format: String},
  {title: data.target === null ? 'to target' : 'to ' + short(100 * data.target) + ' %', value: run => run.target_s, format: duration, best: Math.min, rare: data.target === null},
  {title: 'time', value: run => run.time_s, format: duration},
  {title: 'images/s', value: run => run.tokens_per_s === null ? run.images_per_s : null, format: rate, rare: true},
  {title: 'tokens/s', value: run => run.tokens_per_s, format: rate, rare: true},
  {title: 'mfu', value: run => run.mfu, format: percent, rare: true},
  ...differing.map(key => ({title: key, option: true, value: run => run.differs[key], format: v => v === undefined || v === '-' ? '–' : v})),
].filter(column => !column.rare || runs.some(run => column.value(run) !== null));

function sortedRuns() {
  if (!state.sort) return runs;
  const number = v => v === null || v === undefined || v === '-' ? null : typeof v === 'number' || !isNaN(Number(v)) ? Number(v) : v;
  return [...runs].sort((a, b) => {
    const x = number(state.sort.value(a)), y = number(state.sort.value(b));
    if (x === null || y === null) return (x === null) - (y === null);
    return (typeof x === 'number' && typeof y === 'number' ? x - y : String(x).localeCompare(String(y))) * (state.down ? -1 : 1);
  });
}

function tableCell(run, column) {
  const value = column.value(run);
  if (column.title === 'run')
    return make('td', {class: 'text', title: run.name}, make('span', {class: 'swatch', style: 'background:' + run.color}), run.label);
  if (column.title === 'status') return make('td', {class: 'text'}, make('span', {class: 'pill ' + run.status.replace(/[^a-z]/g, '')}, run.status || '–'));
  let best = false;
  if (column.best && runs.length > 1) {
    const known = runs.map(column.value).filter(v => v !== null);
    best = value !== null && value === column.best(...known);
  }
  return make('td', {class: [column.option && 'option', best && 'best'].filter(Boolean).join(' ')}, value === null ? '–' : (column.format || String)(value));
}

function toggle(run) {
  setRuns(r => { if (r === run) r.on = !r.on; });
}

function alone(run) {
  setRuns(r => { r.on = r === run; });
}

function drawTable() {
  const head = make('tr', {}, ...columns.map(column => make('th', {class: column.text ? 'text' : '', scope: 'col',
    onclick: () => { state.down = state.sort === column ? !state.down : Boolean(column.best); state.sort = column; drawTable(); }},
    column.title + (state.sort === column ? state.down ? ' ↓' : ' ↑' : ''))));
  const rows = sortedRuns().map(run => make('tr', {class: run.on ? '' : 'off', tabindex: 0, 'data-run': run.name,
    onclick: event => { if (event.detail < 2) toggle(run); }, ondblclick: () => alone(run),
    onkeydown: event => { if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); toggle(run); } }},
    ...columns.map(column => tableCell(run, column))));
  $('table').replaceChildren(make('thead', {}, head), make('tbody', {}, ...rows));
}

function drawNotes() {
  for (const run of runs) {
    if (run.error) $('notes').append(make('p', {class: 'note bad'}, make('b', {}, run.label + ': '), run.error));
    for (const alarm of run.alarms) $('notes').append(make('p', {class: 'note'}, make('b', {}, run.label + ': '), alarm));
  }
}

// ---- curves ----

const longest = Math.max(1e-9, ...runs.map(run => run.time_s || 0));
const [timeUnit, timeName] = longest < 300 ? [1, 'seconds'] : longest < 10800 ? [60, 'minutes'] : [3600, 'hours'];
const AXES = {
  epoch: {label: 'epochs', name: 'epoch', format: short, of: table => table.epoch},
  step: {label: 'steps', name: 'step', format: v => v.toLocaleString('en'), of: table => table.step},
  time: {label: timeName, name: 'after', format: v => short(v) + ' ' + timeName, of: table => table.time_s.map(t => t === null ? null : t / timeUnit)},
};
const view = makeView(AXES.epoch);

/** From 0 to the end of the longest run that is on, so that all figures have the same axis. */
view.extent = () => {
  let high = 0;
  for (const run of runs.filter(r => r.on))
    for (const table of [run.steps, run.evals, run.kfac, run.consensus])
      if (table) high = Math.max(high, AXES[state.x].of(table).at(-1) || 0);
  return [0, high || 1];
};

/** The curves of all runs that are on: a column of one of their tables, and the same column of the average of the weights. */
function seriesOf(table, key, of = t => t[key]) {
  const curve = (run, ys, more) => {
    const xs = AXES[state.x].of(run[table]), keep = xs.map((_, i) => i).filter(i => xs[i] !== null);
    return {name: run.label, color: run.color, xs: keep.map(i => xs[i]), ys: keep.map(i => ys[i]), ...more};
  };
  return () => runs.filter(run => run.on && run[table]).flatMap(run => {
    const own = run[table][key], ema = table === 'evals' && run.evals['ema_' + key], out = [];
    if (own) out.push(curve(run, of(run[table]), {}));
    if (ema) out.push(curve(run, ema, {name: run.label + ' (EMA)', dashed: true}));
    return out;
  });
}

const anyRun = (table, key) => runs.some(run => run[table] && run[table][key] && run[table][key].some(v => v !== null));

const CURVES = [
  {key: 'top1', table: 'evals', title: 'Accuracy on the validation set, top-1', format: percent, tick: v => short(100 * v) + ' %'},
  {key: 'val_loss', table: 'evals', column: 'loss', title: 'Loss on the validation set', format: digits},
  {key: 'train_loss', table: 'steps', column: 'loss', title: 'Training loss', format: digits, smoothed: true},
  {key: 'top5', table: 'evals', title: 'Accuracy on the validation set, top-5', format: percent, tick: v => short(100 * v) + ' %'},
  {key: 'lr', table: 'steps', title: 'Learning rate', format: short},
  {key: 'images_per_s', table: 'steps', title: 'Images per second', format: rate, smoothed: true},
  {key: 'mfu', table: 'steps', title: 'Utilisation (mfu)', format: percent, tick: v => short(100 * v) + ' %', smoothed: true},
];

function addChart(parent, curve) {
  const column = curve.column || curve.key;
  if (!anyRun(curve.table, column)) return;
  new LineChart($(parent), view, {...curve, series: seriesOf(curve.table, column, curve.of)});
}

function choice(options, current, pick) {
  const box = make('span', {class: 'choice'});
  const draw = chosen => box.replaceChildren(...options.map(([key, text]) =>
    make('button', {type: 'button', 'aria-pressed': String(key === chosen), 'data-key': key, onclick: () => { draw(key); pick(key); }}, text)));
  draw(current);
  return box;
}

function drawControls() {
  const value = make('span', {style: 'width:2.2em'}, view.smoothing.toFixed(2));
  const slider = make('input', {type: 'range', min: 0, max: 0.98, step: 0.02, value: view.smoothing, id: 'smoothing',
    oninput: event => { view.smoothing = Number(event.target.value); value.textContent = view.smoothing.toFixed(2); view.draw(); }});
  const reset = make('button', {type: 'button', id: 'reset', hidden: true, onclick: () => view.zoom(null)}, 'Reset zoom');
  view.zoomed = () => { reset.hidden = view.domain === null; };
  $('controls').replaceChildren(reset, make('label', {}, 'smoothing', slider, value),
    choice([['epoch', 'Epochs'], ['step', 'Steps'], ['time', 'Time']], state.x, key => setAxis(key)));
}

function setAxis(key) {
  state.x = key;
  view.x = AXES[key];
  view.zoom(null);
  remember();
}

// ---- bars ----

const PHASE_COLORS = {data: '#8a97a8', forward: '#3a73e8', backward: '#7b6be0', exchange: '#d4469a', factor: '#e8792b', decompose: '#db4c53', precondition: '#bb9410', update: '#27a06b'};
const TRAFFIC_COLORS = {gradients: '#3a73e8', factors: '#e8792b', decompositions: '#db4c53', preconditioned: '#bb9410', parameters: '#27a06b'};

function legend(colors) {
  return make('div', {class: 'legend'}, ...Object.entries(colors).map(([name, color]) =>
    make('span', {}, make('span', {class: 'swatch', style: 'background:' + color}), name)));
}

/** Stacked bars, one a row: rows = [{name, color, parts: {part: value}}]. */
function bars(rows, colors, format) {
  const sum = row => Object.values(row.parts).reduce((a, b) => a + b, 0);
  const most = Math.max(...rows.map(sum)) || 1;
  return rows.map(row => {
    const total = sum(row);
    return make('div', {class: 'bar', 'data-bar': row.name},
      make('span', {class: 'name', title: row.name}, row.color ? make('span', {class: 'swatch', style: 'background:' + row.color}) : '', row.name),
      make('div', {class: 'track'}, ...Object.entries(row.parts).filter(([, v]) => v > 0).map(([part, value]) => make('i', {
        style: `width:${100 * value / most}%;background:${colors[part]}`, 'data-part': part, 'data-value': value,
        onpointermove: event => tip.show(event, make('b', {}, row.name), make('div', {}, `${part}: ${format(value)} (${(100 * value / total).toFixed(1)} %)`)),
        onpointerleave: () => tip.hide()}))),
      make('span', {class: 'sum'}, format(total)));
  });
}

function pick(means, keys) {
  return Object.fromEntries(keys.filter(key => means[key] !== null && means[key] !== undefined).map(key => [key, means[key]]));
}

/** Keeps the colours of parts that are there. */
function used(rows, colors) {
  return Object.fromEntries(Object.entries(colors).filter(([part]) => rows.some(row => row.parts[part] > 0)));
}

function drawPhases() {
  const rows = runs.filter(run => run.on && run.means).map(run => ({name: run.label, color: run.color, parts: pick(run.means, data.phases)}))
    .filter(row => Object.keys(row.parts).length > 0);
  $('phase-bars').replaceChildren(...bars(rows, PHASE_COLORS, v => short(Number(v.toPrecision(3))) + ' ms'), legend(used(rows, PHASE_COLORS)));
}

function card(title, note, ...content) {
  return make('div', {class: 'card'}, make('h3', {}, title, make('small', {}, note)), ...content);
}

function drawRanks() {
  const out = [], sent = runs.filter(run => run.on && run.means).map(run => ({name: run.label, color: run.color, parts: pick(run.means, data.traffic)}))
    .filter(row => Object.values(row.parts).some(v => v > 0));
  if (sent.length > 0) out.push(card('Bytes sent in a step', 'mean, rank 0', ...bars(sent, TRAFFIC_COLORS, bytes), legend(used(sent, TRAFFIC_COLORS))));
  for (const run of runs.filter(r => r.on && r.rank_means)) {
    const rows = keys => run.rank_means.map((means, rank) => ({name: 'rank ' + rank, parts: pick(means, keys)}));
    const times = rows(data.phases), bytesOf = rows(data.traffic);
    out.push(card(run.label + ': time of a step on each rank', 'mean', ...bars(times, PHASE_COLORS, v => short(Number(v.toPrecision(3))) + ' ms'), legend(used(times, PHASE_COLORS))));
    if (bytesOf.some(row => Object.values(row.parts).some(v => v > 0)))
      out.push(card(run.label + ': bytes sent in a step by each rank', 'mean', ...bars(bytesOf, TRAFFIC_COLORS, bytes), legend(used(bytesOf, TRAFFIC_COLORS))));
  }
  for (const run of runs.filter(r => r.on && r.loads && r.loads.length > 1)) {
    const rows = run.loads.map((load, rank) => ({name: 'rank ' + rank, parts: {work: load.share || 0}}));
    const times = run.loads.map((load, rank) => ({name: 'rank ' + rank, parts: {time: load.solve_ms || 0}}));
    out.push(card(run.label + ': share of the decompositions', 'planned', ...bars(rows, {work: run.color}, v => (100 * v).toFixed(1) + ' %')));
    if (times.some(row => row.parts.time > 0))
      out.push(card(run.label + ': time of a decomposition', 'mean', ...bars(times, {time: run.color}, v => short(Number(v.toPrecision(3))) + ' ms')));
  }
  $('rank-bars').replaceChildren(...out);
}

// ---- K-FAC ----

const HEAT = [
  {key: 'cosine', title: 'Cosine between gradient and preconditioned gradient', log: false},
  {key: 'nu', title: "Nu, by which the clip scales a layer's step", log: false},
  {key: 'condition', title: 'Condition of the damped factors', log: true},
  {key: 'a_max', title: 'Largest eigenvalue of A', log: true},
  {key: 'a_min', title: 'Smallest eigenvalue of A', log: true},
  {key: 'g_max', title: 'Largest eigenvalue of G', log: true},
  {key: 'g_min', title: 'Smallest eigenvalue of G', log: true},
];

const kfacRuns = runs.filter(run => run.heat);

function drawHeat(name) {
  const run = kfacRuns.find(r => r.name === name);
  $('heat').replaceChildren();
  for (const map of HEAT) {
    const rows = run.heat.layers[map.key], same = rows.length > 1 && rows.every(row => row.every((v, i) => v === rows[0][i]));
    heatMap($('heat'), rows, {...map, note: same ? 'the same for all layers' : '', names: run.heat.names.map(n => n === null ? '?' : n), columns: run.heat.step.map(s => 'step ' + s)});
  }
}

function drawKfac() {
  if (kfacRuns.length === 0) return;
  if (kfacRuns.length > 1) $('kfac-runs').replaceChildren(choice(kfacRuns.map(run => [run.name, run.label]), kfacRuns[0].name, drawHeat));
  drawHeat(kfacRuns[0].name);
}

// ---- options ----

function flatten(config, prefix = '', out = {}) {
  for (const [key, value] of Object.entries(config || {}))
    if (value !== null && typeof value === 'object' && !Array.isArray(value)) flatten(value, prefix + key + '.', out);
    else out[prefix + key] = value;
  return out;
}

function drawConfig() {
  const flat = runs.map(run => ({...pick(run.facts, Object.keys(run.facts)), ...flatten(run.config)}));
  const text = v => v === undefined || v === null ? '–' : v === true ? 'on' : v === false ? 'off' : Array.isArray(v) ? v.join(' ') || '–' : String(v);
  const keys = [...new Set(flat.flatMap(Object.keys))].map(key => ({key, cells: flat.map(f => text(f[key]))}));
  const differs = row => row.cells.some(cell => cell !== row.cells[0]);
  keys.sort((a, b) => differs(b) - differs(a));
  $('config').append(make('details', {}, make('summary', {}, `All ${keys.length} values of ${runs.length === 1 ? 'this run' : 'these ' + runs.length + ' runs'}`),
    make('div', {class: 'inner'}, make('table', {}, make('thead', {}, make('tr', {}, make('th', {}, ''), ...runs.map(run => make('th', {title: run.name}, run.label)))),
      make('tbody', {}, ...keys.map(row => make('tr', {class: differs(row) ? 'differs' : 'same'}, make('td', {}, row.key), ...row.cells.map(cell => make('td', {title: cell}, cell)))))))));
}

// ---- the page ----

function remember() {
  const theme = document.documentElement.dataset.chosen;
  const parts = [state.x !== 'epoch' && 'x=' + state.x, theme && 'theme=' + theme].filter(Boolean);
  try { history.replaceState(null, '', parts.length > 0 ? '#' + parts.join('&') : location.pathname + location.search); } catch (error) { /* a page without an address */ }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $('theme').textContent = theme === 'dark' ? '☀ Light' : '☾ Dark';
}

function start() {
  const given = new URLSearchParams(location.hash.slice(1)), dark = matchMedia('(prefers-color-scheme: dark)');
  if (['light', 'dark'].includes(given.get('theme'))) document.documentElement.dataset.chosen = given.get('theme');
  setTheme(document.documentElement.dataset.chosen || (dark.matches ? 'dark' : 'light'));
  dark.addEventListener('change', () => { if (!document.documentElement.dataset.chosen) setTheme(dark.matches ? 'dark' : 'light'); });
  $('theme').addEventListener('click', () => {
    document.documentElement.dataset.chosen = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    setTheme(document.documentElement.dataset.chosen);
    remember();
  });
  if (AXES[given.get('x')]) { state.x = given.get('x'); view.x = AXES[state.x]; }
  $('all').addEventListener('click', () => setRuns(run => { run.on = true; }));
  $('none').addEventListener('click', () => setRuns(run => { run.on = false; }));

  const models = [...new Set(runs.map(run => run.config && run.config.model).filter(Boolean))];
  $('summary').textContent = [runs.length === 1 ? runs[0].name : runs.length + ' runs', models.join(', '), data.made].filter(Boolean).join(' · ');
  document.title = 'descent report: ' + (runs.length === 1 ? runs[0].label : runs.length + ' runs');
  document.querySelector('footer').textContent = `Made by descent ${data.version} from metrics.jsonl. Curves of long runs show means of consecutive steps.`;
}

function drawAll() {
  view.draw();
  drawPhases();
  drawRanks();
}

start();
view.smoothing = runs.some(run => run.steps && run.steps.step.length > 60) ? 0.8 : 0;
drawTable();
drawNotes();
drawControls();
for (const curve of CURVES) addChart('charts', curve);
addChart('kfac-charts', {key: 'nu', table: 'kfac', title: "Nu, by which K-FAC's clip scales steps", format: digits});
if (kfacRuns.some(run => run.kfac.damping && run.kfac.damping.some(v => v !== run.kfac.damping[0])))
  addChart('kfac-charts', {key: 'damping', table: 'kfac', title: 'Damping', format: short});
addChart('consensus-charts', {key: 'distance', table: 'consensus', title: 'Distance of the ranks from their mean', format: digits});
addChart('consensus-charts', {key: 'relative', column: 'distance', table: 'consensus', title: "Distance in units of the mean's norm", format: short, log: true,
  of: table => table.distance.map((d, i) => d === null || !table.norm[i] ? null : d / table.norm[i])});
drawKfac();
drawConfig();
drawAll();
$('phases').hidden = !runs.some(run => run.means && data.phases.some(key => run.means[key] > 0));
$('kfac').hidden = !runs.some(run => run.kfac);
$('ranks').hidden = $('rank-bars').childElementCount === 0;
$('consensus').hidden = $('consensus-charts').childElementCount === 0;
for (const section of document.querySelectorAll('section'))
  if (!section.hidden) $('contents').append(make('a', {href: '#' + section.id, onclick: event => { event.preventDefault(); section.scrollIntoView(); }}, section.querySelector('h2').textContent));
if (runs.length === 1) for (const element of document.querySelectorAll('#runs .hint, #runs .buttons')) element.hidden = true;
document.documentElement.dataset.ready = 'yes';
