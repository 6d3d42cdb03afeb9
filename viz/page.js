"use strict";
// Draws the timelines that viz/pack.py has packed into this page. `window.rtk` says what is shown, and changes it.
window.rtk = {};
window.rtk.ready = (async () => {
  const element = (id) => document.getElementById(id);
  const view = element("view"), canvas = element("canvas"), spacer = element("spacer"), tip = element("tip");
  const pen = canvas.getContext("2d");
  const data = await unpack(element("data").textContent.trim());
  const { head, tracks, kind, flags, microbatch, pipeline, suffix, chunk, iteration, start, end, latest } = data;
  const tick = head.tick_s, kinds = head.kinds, tints = Math.max(head.chunks.length, 1), several = head.labels.length > 1;
  const REROUTED = 1, LOST = 2, AGAIN = 4, PART = 8, FED = 16, STAGED = 32, UPPER = 64, LOWER = 128, FONT = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif";
  const AXIS = 30, MARK_LINE = 15, MARK_LINES = 3, BAND = 34, HEAD = 22, SNAP = 3, PAD = 10;
  const fullEnd = head.end_s || 1;
  const state = {
    from: 0, until: fullEnd, hidden: new Set(), query: null, unfolded: new Set(), drawn: new Map(), rows: null, fit: false,
  };
  let items = [], places = new Map(), theme = {}, width = 0, height = 0, left = 0, right = 0, top = AXIS, rowHeight = 22;
  let drag = null, scheduled = false, memoryTop = null, scale = null;

  // ---- the data

  async function unpack(text) {
    const packed = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    const length = new DataView(bytes.buffer).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
    const n = head.spans;
    let at = 4 + length;
    const column = () => bytes.subarray(at, (at += n));
    const numbers = (count) => {
      const found = new Int32Array(count), low = at, second = at + count, third = second + count, high = third + count;
      for (let i = 0; i < count; i++) {
        found[i] = bytes[low + i] | (bytes[second + i] << 8) | (bytes[third + i] << 16) | (bytes[high + i] << 24);
      }
      at += 4 * count;
      return found;
    };
    const kind = column(), flags = column();
    const microbatch = numbers(n), start = numbers(n), end = numbers(n), iteration = numbers(n);
    const flagged = (flag) => {
      const found = [];
      for (let i = 0; i < n; i++) if (flags[i] & flag) found.push(i);
      return found;
    };
    const rerouted = flagged(1), owners = numbers(rerouted.length), parts = flagged(8), suffixes = numbers(parts.length);
    const staged = flagged(32), places = numbers(staged.length), chunk = new Uint8Array(n);
    staged.forEach((i, at) => (chunk[i] = places[at]));
    const pipeline = new Map(rerouted.map((i, at) => [i, owners[at]]));
    const suffix = new Map(parts.map((i, at) => [i, head.suffixes[suffixes[at]]]));
    const latest = new Int32Array(n);  // the last end of all spans of the row up to this one
    const tracks = [];
    let i = 0;
    for (const group of head.groups) {
      for (const row of group.rows) {
        const track = { first: i, stop: i + row.spans, row, group };
        const last = new Int32Array(head.kinds.length);
        let before = 0, number = 0, most = 0;
        for (; i < track.stop; i++) {
          microbatch[i] = last[kind[i]] += microbatch[i];
          start[i] += before;
          before = end[i] += start[i];
          iteration[i] = number += iteration[i];
          latest[i] = most = Math.max(most, before);
        }
        row.track = tracks.length;
        tracks.push(track);
      }
    }
    return { head, tracks, kind, flags, microbatch, pipeline, suffix, chunk, iteration, start, end, latest };
  }

  // ---- words

  function printNumber(value) {
    return Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(4)));
  }
  function unitOf(seconds) {
    const size = Math.abs(seconds);
    return size >= 1 || size === 0 ? ["s", 1] : size >= 1e-3 ? ["ms", 1e3] : ["µs", 1e6];
  }
  function printTime(seconds) {
    const [name, factor] = unitOf(seconds);
    return `${printNumber(seconds * factor)} ${name}`;
  }
  function printBytes(size) {
    for (const name of ["B", "KiB", "MiB", "GiB"]) {
      if (Math.abs(size) < 1024) return `${printNumber(size)} ${name}`;
      size /= 1024;
    }
    return `${printNumber(size)} TiB`;
  }
  function ranges(numbers) {
    const parts = [];
    for (let i = 0; i < numbers.length; i++) {
      let j = i;
      while (numbers[j + 1] === numbers[j] + 1) j++;
      parts.push(j > i + 1 ? `${numbers[i]} to ${numbers[j]}` : numbers[i]);
      if (j === i + 1) parts.push(numbers[j]);
      i = j;
    }
    return parts.length > 1 ? `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}` : parts[0];
  }
  const layersOf = (held) => `layers ${held.map(([first, stop]) => `${first} to ${stop - 1}`).join(" and ")}`;
  const isComputed = (i) => kind[i] < 4;
  const ownerOf = (i, own) => (flags[i] & REROUTED ? pipeline.get(i) : own);
  function labelOf(i) {
    if (!isComputed(i)) return "";
    const part = (suffix.get(i) || "").replace("~", "");
    return (flags[i] & REROUTED ? `${pipeline.get(i)}.${microbatch[i]}` : String(microbatch[i])) + part;
  }
  const stageOf = (i, row) => (row.seats ? row.seats[chunk[i]] : row.stage);
  const opOf = (i, row) => (isComputed(i) ? (flags[i] & STAGED ? stageOf(i, row) : "") + kinds[kind[i]].name + labelOf(i) + (flags[i] & AGAIN ? "~" : "") : kinds[kind[i]].name);
  function tipOf(item, i) {
    let words = kinds[kind[i]].words;
    if (isComputed(i)) words += ` of micro-batch ${ownerOf(i, item.pipeline)}.${microbatch[i]}`;
    if (flags[i] & REROUTED) words += ", re-routed";
    if (flags[i] & AGAIN) words += ", again: for its message alone";
    if (flags[i] & FED) words += ", begins with a kept message, sent again";
    const { layers, seats } = item.row, staged = flags[i] & STAGED, at = staged ? stageOf(i, item.row) : item.row.stage;
    return [
      `${opOf(i, item.row)}  ${words}`,
      `worker ${item.worker} (pipeline ${item.pipeline}, ${seats ? (staged ? `virtual stage ${at}` : `virtual stages ${ranges(seats)}`) : `stage ${at}`}${several ? `; ${head.labels[item.row.timeline]}` : ""})`,
      ...(layers ? [staged ? layersOf([layers[chunk[i]]]) : `holds ${layersOf(layers)}`] : []),
      `start ${printTime(start[i] * tick)}`, `end ${printTime(end[i] * tick)}`,
      `takes ${printTime((end[i] - start[i]) * tick)}`,
      `iteration ${iteration[i]}${flags[i] & LOST ? ", in vain: done again later" : ""}`,
    ].join("\n");
  }

  // ---- which rows there are, and where

  function wantedRow(text) {
    if (!text.trim()) return null;
    const parts = text.split(/[,;\s]+/).filter(Boolean).map((part) => {
      const found = /^(\*|\d+)(?:-(\d+))?(?:\/(\*|\d+)(?:-(\d+))?)?$/.exec(part);
      if (!found) return null;
      const bound = (a, b) => (a === undefined || a === "*" ? [0, Infinity] : [+a, b === undefined ? +a : +b]);
      return [bound(found[1], found[2]), bound(found[3], found[4])];
    });
    if (parts.some((one) => one === null)) return undefined;
    return (k, i) => parts.some(([[a, b], [c, d]]) => a <= k && k <= b && c <= i && i <= d);
  }

  function layOut() {
    items = [];
    places = new Map();
    const groups = [], bands = [];
    for (const [number, group] of head.groups.entries()) {
      const shown = group.pipelines.filter((k) => !state.rows || group.rows.some((row) => state.rows(k, row.stage)));
      if (!shown.length) continue;
      const folded = shown.length > 1 && !state.unfolded.has(number);
      const drawn = state.drawn.get(number);
      groups.push({ number, group, shown, folded, drawn: folded ? [shown.includes(drawn) ? drawn : shown[0]] : shown });
    }
    const order = [];
    for (const one of groups) for (const k of one.drawn) order.push([k, one]);
    const placeOf = ([k, one]) => (one.folded ? one.shown[0] : k);
    order.sort((a, b) => placeOf(a) - placeOf(b));
    let y = 4, count = 0;
    for (const [k, one] of order) count += one.group.rows.filter((row) => !state.rows || state.rows(k, row.stage)).length;
    const headings = groups.filter((one) => one.shown.length > 1).length;
    const room = Math.max(window.innerHeight * 0.72 - top - HEAD * headings - 12 - 0.4 * 26, 200);
    rowHeight = state.fit ? Math.max(Math.min(room / Math.max(count, 1), 26), 2) : count > 24 ? 18 : 26;
    const headed = new Set();
    for (const [k, one] of order) {
      if (one.shown.length > 1 && !headed.has(one.number)) {
        headed.add(one.number);
        items.push({ type: "head", y, height: HEAD, ...one });
        y += HEAD;
      }
      let before = null, leads = false;
      for (const row of one.group.rows) {
        if (state.rows && !state.rows(k, row.stage)) continue;
        if (several && before !== null && row.stage !== before) y += rowHeight * 0.25;
        before = row.stage;
        const worker = `${k}/${row.stage}`;
        const item = { type: "row", y, height: rowHeight, pipeline: k, row, worker, track: tracks[row.track], leads: !leads };
        leads = true;
        places.set(`${row.timeline} ${worker}`, item);
        items.push(item);
        y += rowHeight;
        if (row.memory) {
          const band = bands.at(-1);
          if (band && band.worker === worker) band.tracks.push(item.track);
          else bands.push({ type: "band", worker, tracks: [item.track], pipeline: k });
        }
      }
      y += rowHeight * 0.4;
    }
    memoryTop = null;
    if (bands.length) {
      memoryTop = y;
      items.push({ type: "memory", y, height: 30 });
      y += 30;
      for (const band of bands) {
        items.push({ ...band, y, height: BAND });
        y += BAND;
      }
    }
    const total = top + y + 8;
    height = Math.min(total, Math.max(window.innerHeight * 0.72, 260));
    view.style.height = `${height + 2}px`;
    spacer.style.height = `${Math.max(total - height, 0)}px`;
    measure();
  }

  function measure() {
    pen.font = `12px ${FONT}`;
    let longest = 64;  // "time (ms)"
    for (const item of items) if (item.type === "row") longest = Math.max(longest, pen.measureText(rowLabel(item)).width);
    left = Math.min(longest, 240) + 16;
    const band = items.find((item) => item.type === "band"), widest = "999.9 GiB";
    const peaks = band && `peak ${Array(band.tracks.length).fill(widest).join(" / ")}${band.tracks[0].row.memory.limit === null ? "" : ` of ${widest}`}`;
    right = band ? 12 + pen.measureText(peaks).width : 24;
    width = view.clientWidth;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  function rowLabel(item) {
    return item.worker + (several ? ` ${head.labels[item.row.timeline]}` : "") + (item.row.note ? ` (${item.row.note})` : "");
  }
  const span = () => state.until - state.from;
  const xOf = (seconds) => left + ((seconds - state.from) / span()) * (width - left - right);
  const timeAt = (x) => state.from + ((x - left) / (width - left - right)) * span();

  // The spans of a track that a time range shows: from the first that ends after it begins to the first that starts behind it.
  function visible(track, from, until) {
    const a = from / tick, b = until / tick;
    let low = track.first, high = track.stop;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (latest[middle] > a) high = middle;
      else low = middle + 1;
    }
    const first = low;
    high = track.stop;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start[middle] >= b) high = middle;
      else low = middle + 1;
    }
    return [first, low];
  }

  // ---- colours

  function rgb(text) {
    const number = parseInt(text.trim().slice(1).replace(/^(.)(.)(.)$/, "$1$1$2$2$3$3"), 16);
    return [number >> 16, (number >> 8) & 255, number & 255];
  }
  const mixed = (a, b, share) => a.map((value, n) => Math.round(value * share + b[n] * (1 - share)));
  const css = (colour) => `rgb(${colour.join(",")})`;
  const word = ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r;
  function readTheme() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["ground", "ink", "faint", "idle", "grid", "line", "alarm", "gone", "curve", "curve2", "curve3", "head"]) {
      theme[name] = style.getPropertyValue(`--${name}`).trim();
    }
    const idle = rgb(theme.idle);
    const full = [];  // of each chunk all kinds
    for (let n = 0; n < tints; n++) for (const { colours } of kinds) full.push(rgb(colours[Math.min(n, colours.length - 1)]));
    // Of each of these: as it is, in vain, and both while something else is searched for.
    theme.colours = [...full, ...full.map((one) => mixed(one, idle, 0.35)), ...full.map((one) => mixed(one, idle, 0.22)), ...full.map((one) => mixed(one, idle, 0.1))];
    theme.css = theme.colours.map(css);
    theme.words = theme.colours.map(word);
    theme.idleWord = word(idle);
    const tile = document.createElement("canvas");
    tile.width = tile.height = 7;
    const brush = tile.getContext("2d");
    brush.strokeStyle = "rgba(31,36,48,.6)";
    brush.lineWidth = 1.1;
    brush.beginPath();
    for (const shift of [-7, 0, 7]) brush.moveTo(shift - 1, 8), brush.lineTo(shift + 8, -1);
    brush.stroke();
    theme.hatch = pen.createPattern(tile, "repeat");
  }
  function setTheme(name) {
    document.documentElement.dataset.theme = name;
    element("theme").textContent = name === "dark" ? "light" : "dark";
    readTheme();
    schedule();
  }

  // ---- drawing

  function schedule() {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      draw();
    });
  }

  function draw(offset = view.scrollTop, printed = false) {
    const ratio = window.devicePixelRatio || 1;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = theme.ground;
    pen.fillRect(0, 0, width, height);
    pen.textBaseline = "middle";
    const shown = itemsIn(offset, offset + height - top);
    drawGrid();
    for (const item of shown) {
      const y = top + item.y - offset;
      if (item.type === "row") drawRow(item, y, ratio);
      else if (item.type === "head") drawHead(item, y);
      else if (item.type === "band") drawBand(item, y);
      else drawMemoryHead(y);
    }
    drawMarks(offset);
    drawAxis();
    if (drag && drag.kind === "zoom") {
      pen.fillStyle = "rgba(86,180,233,.22)";
      pen.fillRect(Math.min(drag.x, drag.to), top, Math.abs(drag.to - drag.x), height - top);
    }
    if (!printed) element("times").placeholder = `${printTime(state.from)} - ${printTime(state.until)}`;
  }

  function itemsIn(from, until) {
    let low = 0, high = items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (items[middle].y + items[middle].height > from) high = middle;
      else low = middle + 1;
    }
    const found = [];
    for (; low < items.length && items[low].y < until; low++) found.push(items[low]);
    return found;
  }

  function ticksOf() {
    const count = Math.max(Math.floor((width - left - right) / 90), 2), rough = span() / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough * (1 - 1e-9));
    const places = [];
    for (let n = Math.ceil(state.from / step); n * step <= state.until * (1 + 1e-12); n++) places.push(n * step);
    return [places, step];
  }
  function drawGrid() {
    pen.fillStyle = theme.grid;
    for (const time of ticksOf()[0]) pen.fillRect(Math.round(xOf(time)), top, 1, height - top);
  }
  function drawAxis() {
    pen.fillStyle = theme.ground;
    pen.fillRect(0, 0, width, top - MARK_LINE * markLines());
    pen.fillRect(0, 0, left - 8, top);
    pen.fillStyle = theme.line;
    pen.fillRect(0, top - 1, width, 1);
    const [places, step] = ticksOf(), [name, factor] = unitOf(Math.max(Math.abs(state.from), Math.abs(state.until)));
    const digits = Math.max(0, -Math.floor(Math.log10(step * factor) + 1e-9));
    pen.font = `12px ${FONT}`;
    pen.textAlign = "center";
    pen.fillStyle = theme.ink;
    for (const time of places) {
      const x = xOf(time);
      if (x > left - 1) pen.fillText((time * factor).toFixed(digits), x, AXIS / 2 - 2);
      if (x > left - 1) pen.fillRect(Math.round(x), AXIS - 7, 1, 5);
    }
    pen.textAlign = "left";
    pen.fillStyle = theme.faint;
    pen.fillText(`time (${name})`, 8, AXIS / 2 - 2);
  }

  const markLines = () => (head.marks.length ? MARK_LINES : 0);
  function shownMarks() {
    return head.marks.filter((mark) => mark.time_s >= state.from - 1e-12 && mark.time_s <= state.until + 1e-12);
  }
  function drawMarks(offset) {
    const marks = shownMarks(), taken = Array.from({ length: MARK_LINES }, () => []);
    const bottom = memoryTop === null ? height : Math.min(height, top + memoryTop - offset);
    pen.font = `11px ${FONT}`;
    pen.fillStyle = theme.ground;
    if (head.marks.length) pen.fillRect(0, AXIS, width, top - AXIS);
    for (const isEvent of [true, false]) {
      for (const mark of marks) {
        if (mark.event !== isEvent) continue;
        const x = xOf(mark.time_s), length = pen.measureText(mark.short).width;
        const late = x + length + 8 > width - 4 && x > width / 2, a = late ? x - length - 8 : x, b = a + length + 8;
        const level = taken.findIndex((lane) => lane.every(([c, d]) => b <= c || d <= a));
        pen.strokeStyle = pen.fillStyle = isEvent ? theme.alarm : theme.faint;
        pen.lineWidth = isEvent ? 1.5 : 1;
        pen.setLineDash(isEvent ? [] : [2, 3]);
        pen.beginPath();
        pen.moveTo(x, level >= 0 ? top - MARK_LINE * (level + 1) + 3 : top);
        pen.lineTo(x, bottom);
        pen.stroke();
        pen.setLineDash([]);
        if (level < 0) continue;
        taken[level].push([a, b]);
        pen.textAlign = late ? "right" : "left";
        pen.fillText(mark.short, late ? x - 4 : x + 4, top - MARK_LINE * (level + 0.5));
      }
    }
  }

  function clipTime(from, until) {
    const a = Math.max(xOf(from), left), b = Math.min(xOf(until), width - right);
    return b > a ? [a, b - a] : [a, 0];
  }
  function drawLabel(text, y, high, colour = theme.ink) {
    pen.font = `${Math.min(12, high - 1)}px ${FONT}`;
    pen.textAlign = "right";
    pen.fillStyle = colour;
    pen.fillText(text, left - 8, y + high / 2, left - 12);
  }

  function drawRow(item, y, ratio) {
    const high = Math.max(item.height * 0.86, 1), up = y + (item.height - high) / 2, { row, track } = item;
    if (item.height >= 8) drawLabel(rowLabel(item), y, item.height, row.note ? theme.faint : theme.ink);
    else if (item.leads) drawLabel(`${item.pipeline}/…`, y, 12);  // of rows too low for words the pipelines are named
    if (row.spans) {
      const [x, length] = clipTime(0, row.end_s);
      pen.fillStyle = theme.idle;
      pen.fillRect(x, up, length, high);
    }
    for (const [from, until, words] of row.gaps || []) {
      const [x, length] = clipTime(from, until);
      pen.fillStyle = theme.gone;
      pen.fillRect(x, up, length, high);
      pen.font = `11px ${FONT}`;
      pen.textAlign = "left";
      pen.fillStyle = theme.alarm;
      if (length > pen.measureText(words).width + 8 && high > 9) pen.fillText(words, x + 4, y + item.height / 2);
    }
    const [first, stop] = visible(track, state.from, state.until);
    if (first === stop) return;
    const [x, length] = clipTime(start[first] * tick, Math.min(latest[stop - 1] * tick, state.until));
    if (stop - first > (length * ratio) / 2) drawDensity(item, first, stop, up, high, ratio);
    else drawBars(item, first, stop, y);
    if (state.query) drawFound(item, first, stop, y);
  }

  // Where a bar begins and how high it is; of two side by side each has half a row.
  function acrossOf(i, item, y) {
    const whole = item.height * kinds[kind[i]].height, up = y + (item.height - whole) / 2;
    return flags[i] & UPPER ? [up, whole / 2] : flags[i] & LOWER ? [up + whole / 2, whole / 2] : [up, whole];
  }

  function drawBars(item, first, stop, y) {
    const shades = tints * kinds.length, dim = state.query ? 2 * shades : 0, scaleX = (width - left - right) / span(), from = state.from;
    const shiftX = left - from * scaleX, perTick = tick * scaleX, most = width - right;
    const words = [];
    let colour = -1;
    for (let i = first; i < stop; i++) {
      const k = kind[i];
      if (state.hidden.has(k)) continue;
      let a = shiftX + start[i] * perTick, b = shiftX + end[i] * perTick;
      if (b < left || a > most) continue;
      a = Math.max(a, left);
      b = Math.min(b, most);
      const share = kinds[k].height, [up, high] = acrossOf(i, item, y);
      const wanted = k + kinds.length * chunk[i] + (flags[i] & LOST ? shades : 0) + dim;
      if (wanted !== colour) pen.fillStyle = theme.css[(colour = wanted)];
      const length = b - a;
      pen.fillRect(a, up, length > 3 ? length - 0.6 : Math.max(length, 0.7), high);
      if (flags[i] & AGAIN && length > 6) {
        pen.fillStyle = theme.ground;
        pen.fillRect(a + 2, up + 2, length - 4.6, high - 4);
        colour = -1;
      }
      if (flags[i] & FED && length > 2) {
        pen.fillStyle = theme.ink;
        pen.fillRect(a, up, Math.min(3, length / 5), high);
        colour = -1;
      }
      if (flags[i] & REROUTED && length > 2) {
        pen.fillStyle = theme.hatch;
        pen.fillRect(a, up, length - 0.6, high);
        colour = -1;
      }
      if (length > 9 && share > 0.6 && high > (flags[i] & (UPPER | LOWER) ? 9 : 0) && item.height > 11) words.push(i, a, length);
    }
    pen.font = `11px ${FONT}`;
    pen.textAlign = "center";
    for (let n = 0; n < words.length; n += 3) {
      const label = labelOf(words[n]), length = words[n + 2];
      pen.fillStyle = state.query ? theme.faint : flags[words[n]] & AGAIN ? theme.ink : "#1f2430";
      const [up, high] = acrossOf(words[n], item, y);
      if (length > label.length * 6.4 + 3) pen.fillText(label, words[n + 1] + length / 2, up + high / 2 + 0.5);
    }
  }

  // Where bars are thinner than a pixel each column shows the shares of its time, kind by kind, and what is idle on top.
  function drawDensity(item, first, stop, up, high, ratio) {
    const columns = Math.round((width - left - right) * ratio), lines = Math.max(Math.round(high * ratio), 1);
    const shades = 2 * tints * kinds.length, shares = new Float32Array(columns * shades), perTick = (columns / span()) * tick;
    const shift = -(state.from / span()) * columns, dim = state.query ? shades : 0;
    for (let i = first; i < stop; i++) {
      const k = kind[i];
      if (state.hidden.has(k)) continue;
      const shade = k + kinds.length * chunk[i] + (flags[i] & LOST ? shades / 2 : 0);
      const a = Math.max(shift + start[i] * perTick, 0), b = Math.min(shift + end[i] * perTick, columns);
      for (let c = Math.floor(a); c < b; c++) shares[c * shades + shade] += Math.min(b, c + 1) - Math.max(a, c);
    }
    const image = pen.createImageData(columns, lines), pixels = new Uint32Array(image.data.buffer);
    const ended = Math.min(shift + (item.row.end_s / tick) * perTick, columns), ground = word(rgb(theme.ground));
    for (let c = 0; c < columns; c++) {
      const base = c * shades, idle = c < ended ? theme.idleWord : ground;
      let line = lines, sum = 0;
      for (let s = 0; s < shades; s++) {
        const share = shares[base + s];
        if (!share) continue;
        sum = Math.min(sum + share, 1);
        const to = lines - Math.round(sum * lines), colour = theme.words[s + dim];
        while (line > to) pixels[--line * columns + c] = colour;
      }
      while (line > 0) pixels[--line * columns + c] = idle;
    }
    for (const [from, until] of item.row.gaps || []) {
      const a = Math.max(Math.round(shift + (from / tick) * perTick), 0), b = Math.min(shift + (until / tick) * perTick, columns);
      const gone = word(rgb(theme.gone));
      for (let c = a; c < b; c++) for (let n = 0; n < lines; n++) if (pixels[n * columns + c] === theme.idleWord) pixels[n * columns + c] = gone;
    }
    pen.putImageData(image, Math.round(left * ratio), Math.round(up * ratio));
  }

  function drawFound(item, first, stop, y) {
    for (let i = first; i < stop; i++) {
      if (state.hidden.has(kind[i]) || !isFound(i, item)) continue;
      const [x, length] = clipTime(start[i] * tick, end[i] * tick), wide = Math.max(length, 2);
      const [up, high] = acrossOf(i, item, y);
      pen.fillStyle = theme.css[kind[i] + kinds.length * chunk[i]];
      pen.fillRect(x, up, wide, high);
      if (flags[i] & REROUTED) (pen.fillStyle = theme.hatch), pen.fillRect(x, up, wide, high);
      if (wide > 3 && high > 6) {
        pen.strokeStyle = theme.ink;
        pen.lineWidth = 1.4;
        pen.strokeRect(x + 0.5, up + 0.5, wide - 1, high - 1);
      }
      const label = labelOf(i);
      if (wide > label.length * 6.4 + 3 && item.height > 11) {
        pen.font = `11px ${FONT}`;
        pen.textAlign = "center";
        pen.fillStyle = "#1f2430";
        pen.fillText(label, x + wide / 2, up + high / 2 + 0.5);
      }
    }
  }

  function headWords(item) {
    const what = `pipelines ${ranges(item.shown)} are alike`;
    return item.folded ? `▸ ${what}: pipeline ${item.drawn[0]} is drawn (click to show all)` : `▾ ${what} (click to show one)`;
  }
  function drawHead(item, y) {
    pen.fillStyle = theme.head;
    pen.fillRect(0, y, width, item.height - 2);
    pen.font = `12px ${FONT}`;
    pen.textAlign = "left";
    pen.fillStyle = theme.ink;
    pen.fillText(headWords(item), 8, y + item.height / 2 - 1);
  }

  // ---- memory

  // A worker's memory as steps: F adds when it starts, I leaves the stash when it ends, W and B free the rest.
  function curveOf(track) {
    if (track.curve) return track.curve;
    const { sizes: each } = track.row.memory, changes = [];
    for (const [time, resumed] of track.row.drops || []) changes.push([time / tick, resumed ? 1 : 0, -1]);
    const keyOf = (i) => {
      const own = iteration[i] * 2 ** 31 + microbatch[i], origin = flags[i] & REROUTED ? pipeline.get(i) : "";
      const key = origin === "" && !chunk[i] ? own : `${origin} ${own} ${chunk[i]}`;
      return flags[i] & AGAIN ? `${key}~` : key;
    };
    const inVain = new Set(), followed = new Set();
    for (let i = track.first; i < track.stop; i++) {
      if (flags[i] & LOST) inVain.add(keyOf(i));
      if (isComputed(i) && kind[i]) followed.add(keyOf(i));
    }
    for (let i = track.first; i < track.stop; i++) if (isComputed(i)) changes.push([kind[i] === 0 ? start[i] : end[i], i, kind[i]]);
    // What was run again for its message alone is freed at its end, where no I follows.
    for (let i = track.first; i < track.stop; i++) if (flags[i] & AGAIN && !followed.has(keyOf(i))) changes.push([end[i], i, 3]);
    changes.sort((a, b) => a[0] - b[0]);
    const whole = each.map(() => new Set()), stashed = each.map(() => new Set()), times = [0], sizes = [0];
    let peak = 0;
    for (const [time, i, what] of changes) {
      if (what < 0) {
        // An epoch that goes on in the midst of an iteration drops what is not gone on with.
        for (const held of [...whole, ...stashed]) for (const one of i ? inVain : [...held]) held.delete(one);
      } else {
        const key = keyOf(i), here = whole[chunk[i]], left = stashed[chunk[i]], was = here.delete(key);
        left.delete(key);
        if (what === 0) here.add(key);
        else if (what === 1 && was && !(flags[i] & AGAIN)) left.add(key);
      }
      const size = each.reduce((sum, [activation, stash], n) => sum + whole[n].size * activation + stashed[n].size * stash, 0);
      peak = Math.max(peak, size);
      times.push(time * tick);
      sizes.push(size);
    }
    return (track.curve = { times, sizes, peak });
  }
  function memoryScale() {
    if (scale === null) {
      scale = 0;
      for (const track of tracks) if (track.row.memory) scale = Math.max(scale, curveOf(track).peak, track.row.memory.limit || 0);
      scale = scale || 1;
    }
    return scale;
  }
  function peaksOf(band) {
    const peaks = [...new Set(band.tracks.map((track) => printBytes(curveOf(track).peak)))].join(" / ");
    const { limit } = band.tracks[0].row.memory;
    return `peak ${peaks}${limit === null ? "" : ` of ${printBytes(limit)}`}`;
  }
  function drawMemoryHead(y) {
    pen.font = `600 13px ${FONT}`;
    pen.textAlign = "left";
    pen.fillStyle = theme.ink;
    pen.fillText("Memory held for micro-batches under way, all workers to one scale", left, y + 16);
  }
  function drawBand(item, y) {
    const foot = y + item.height - 4, unit = ((item.height - 8) * 0.98) / memoryScale();
    drawLabel(item.worker, foot - 16, 16);
    pen.fillStyle = theme.line;
    pen.fillRect(left, foot, width - left - right, 1);
    for (const track of item.tracks) {
      const { times, sizes } = curveOf(track), colour = [theme.curve, theme.curve2, theme.curve3][Math.min(track.row.timeline, 2)];
      let low = 0, high = times.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (times[middle] >= state.from) high = middle;
        else low = middle + 1;
      }
      let n = Math.max(low - 1, 0), x = left;
      pen.beginPath();
      pen.moveTo(x, foot - sizes[n] * unit);
      for (n++; n < times.length && times[n] <= state.until; n++) {
        x = Math.max(xOf(times[n]), left);
        pen.lineTo(x, foot - sizes[n - 1] * unit);
        pen.lineTo(x, foot - sizes[n] * unit);
      }
      const last = Math.max(xOf(Math.min(head.end_s, state.until)), x);
      pen.lineTo(last, foot - sizes[n - 1] * unit);
      pen.strokeStyle = colour;
      pen.lineWidth = 1.1;
      pen.stroke();
      if (track.row.timeline === 0) {
        pen.lineTo(last, foot);
        pen.lineTo(left, foot);
        pen.globalAlpha = 0.2;
        pen.fillStyle = colour;
        pen.fill();
        pen.globalAlpha = 1;
      }
    }
    const { limit } = item.tracks[0].row.memory;
    if (limit !== null) {
      pen.strokeStyle = theme.alarm;
      pen.setLineDash([5, 4]);
      pen.beginPath();
      pen.moveTo(left, foot - limit * unit);
      pen.lineTo(width - right, foot - limit * unit);
      pen.stroke();
      pen.setLineDash([]);
    }
    pen.font = `11px ${FONT}`;
    pen.textAlign = "left";
    pen.fillStyle = theme.faint;
    pen.fillText(peaksOf(item), width - right + 6, foot - 8);
  }

  // ---- search

  function isFound(i, { row, pipeline: own }) {
    const { stage, letter, owner, number, name } = state.query;
    if (name !== undefined) return kinds[kind[i]].name === name;
    return isComputed(i) && microbatch[i] === number && (letter === undefined || kinds[kind[i]].name === letter) && (owner === undefined || ownerOf(i, own) === owner) && (stage === undefined || stageOf(i, row) === stage);
  }
  function find(text) {
    const wanted = text.trim(), place = /^(\d+)\/(\d+)$/.exec(wanted);
    const found = /^(?:(\d+)?([FIWB]))?(?:(\d+)\.)?(\d+)$/i.exec(wanted);
    const number = (value) => (value === undefined ? undefined : Number(value));
    state.query = null;
    element("search").value = text;
    let said = "";
    if (place) said = showRow(`${place[1]}/${place[2]}`) ? `worker ${wanted}` : `no worker ${wanted}`;
    else if (found) state.query = { stage: number(found[1]), letter: found[2] && found[2].toUpperCase(), owner: number(found[3]), number: number(found[4]) };
    else if (kinds.some((one) => one.name === wanted)) state.query = { name: wanted };
    else if (wanted) said = "write a micro-batch such as 1.3, or F1.3, or a worker such as 0/1";
    state.match = null;
    if (state.query) {
      const { owner } = state.query;
      for (const [n, group] of head.groups.entries()) if (group.pipelines.includes(owner)) state.drawn.set(n, owner);
      layOut();
      state.match = matches();
      const { count, from, until } = state.match;
      said = count ? `${count} operations from ${printTime(from)} to ${printTime(until)}: Enter zooms to them` : "not found";
    }
    element("found").textContent = said;
    schedule();
    return state.match ? state.match.count : 0;
  }
  function matches() {
    let count = 0, from = Infinity, until = 0;
    for (const item of items) {
      if (item.type !== "row") continue;
      for (let i = item.track.first; i < item.track.stop; i++) {
        if (!isFound(i, item)) continue;
        count++;
        from = Math.min(from, start[i] * tick);
        until = Math.max(until, end[i] * tick);
      }
    }
    return { count, from, until };
  }
  function showRow(worker) {
    const found = [...places.values()].find((item) => item.worker === worker) || unfoldTo(worker);
    if (found) view.scrollTop = Math.max(found.y - 40, 0);
    return Boolean(found);
  }
  function unfoldTo(worker) {
    const k = Number(worker.split("/")[0]), number = head.groups.findIndex((group) => group.pipelines.includes(k));
    if (number < 0) return undefined;
    state.drawn.set(number, k);
    layOut();
    schedule();
    return [...places.values()].find((item) => item.worker === worker);
  }

  // ---- moving

  function zoom(from, until) {
    const least = Math.max(20 * tick, fullEnd * 1e-9), length = Math.min(Math.max(until - from, least), fullEnd);
    const middle = (from + until) / 2;
    state.from = Math.min(Math.max(middle - length / 2, 0), fullEnd - length);
    state.until = state.from + length;
    schedule();
  }
  function zoomBy(factor, at = (state.from + state.until) / 2) {
    zoom(at - (at - state.from) * factor, at + (state.until - at) * factor);
  }
  const pan = (share) => zoom(state.from + share * span(), state.until + share * span());
  const all = () => zoom(0, fullEnd);
  function fold(folded, number) {
    for (const n of number === undefined ? head.groups.keys() : [number]) folded ? state.unfolded.delete(n) : state.unfolded.add(n);
    layOut();
    if (state.query) state.match = matches();
    element("fold").textContent = head.groups.some((group, n) => group.pipelines.length > 1 && !state.unfolded.has(n)) ? "show all pipelines" : "fold alike pipelines";
    schedule();
  }
  function hide(name, hidden = true) {
    const k = kinds.findIndex((one) => one.name === name);
    hidden ? state.hidden.add(k) : state.hidden.delete(k);
    for (const button of element("legend").querySelectorAll("button")) button.setAttribute("aria-pressed", String(!state.hidden.has(Number(button.dataset.kind))));
    schedule();
  }
  function select(text) {
    const wanted = wantedRow(text);
    if (wanted === undefined) return void (element("found").textContent = "write rows such as 0-3, 1/2 or */0");
    element("found").textContent = "";
    state.rows = wanted;
    layOut();
    schedule();
  }
  function setTimes(text) {
    const [name] = unitOf(fullEnd), factors = { s: 1, ms: 1e3, "µs": 1e6, us: 1e6 };
    const found = /^\s*([\d.]+)\s*(s|ms|us|µs)?\s*(?:-|–|to)\s*([\d.]+)\s*(s|ms|us|µs)?\s*$/.exec(text);
    if (!text.trim()) return all();
    if (!found) return void (element("found").textContent = `write times such as 1 - 2 ${name}`);
    const unit = found[4] || found[2] || name;
    zoom(found[1] / factors[found[2] || unit], found[3] / factors[unit]);
  }

  // ---- pointing

  function pointed(x, y) {
    const within = y - top + view.scrollTop;
    const item = y < top ? undefined : itemsIn(within, within + 0.01)[0];
    const near = (SNAP / (width - left - right)) * span(), time = timeAt(x);
    const mark = x > left - SNAP ? shownMarks().filter((one) => Math.abs(one.time_s - time) <= near).sort((a, b) => b.event - a.event)[0] : undefined;
    if (mark && (y < top || mark.event)) return { words: `${printTime(mark.time_s)}\n${mark.words.join("\n")}` };
    if (!item || (item.type !== "head" && (x < left || x > width - right))) {
      return item && item.row && item.row.layers ? { words: `worker ${item.worker}\nholds ${layersOf(item.row.layers)}` } : null;
    }
    if (item.type === "row") return pointedRow(item, time, near);
    if (item.type === "band") {
      return { words: item.tracks.map((track) => {
        const { times, sizes } = curveOf(track);
        let n = 0;
        while (n + 1 < times.length && times[n + 1] <= time) n++;
        return `worker ${item.worker} holds ${printBytes(sizes[n])}\nfrom ${printTime(times[n])} on${several ? ` (${head.labels[track.row.timeline]})` : ""}`;
      }).join("\n") };
    }
    return { item, words: item.type === "head" ? headWords(item).slice(2) : "" };
  }
  function pointedRow(item, time, near) {
    const [first, stop] = visible(item.track, time - near, time + near);
    let best = -1, distance = Infinity;
    for (let i = first; i < stop; i++) {
      if (state.hidden.has(kind[i])) continue;
      const away = Math.max(start[i] * tick - time, time - end[i] * tick, 0);
      if (away <= distance) (best = i), (distance = away);
    }
    if (best >= 0) return { item, index: best, words: tipOf(item, best) };
    for (const [from, until, , words] of item.row.gaps || []) if (from <= time && time <= until) return { item, words };
    if (time > item.row.end_s || !item.row.spans) return null;
    const [behind] = visible(item.track, time, time + tick);
    const from = behind > item.track.first ? latest[behind - 1] * tick : 0, until = behind < item.track.stop ? start[behind] * tick : item.row.end_s;
    return { item, words: `idle\nworker ${item.worker}\nfrom ${printTime(from)} to ${printTime(until)}\ntakes ${printTime(until - from)}` };
  }
  function hover(x, y) {
    const found = pointed(x, y), box = canvas.getBoundingClientRect();
    tip.style.display = found && found.words ? "block" : "none";
    canvas.style.cursor = found && found.item && found.item.type === "head" ? "pointer" : "crosshair";
    if (!found || !found.words) return;
    tip.textContent = found.words;
    const across = box.left + x + 14, down = box.top + y + 16;
    tip.style.left = `${Math.max(Math.min(across, window.innerWidth - tip.offsetWidth - 8), 0)}px`;
    tip.style.top = `${down + tip.offsetHeight > window.innerHeight ? box.top + y - tip.offsetHeight - 10 : down}px`;
  }

  const placeIn = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = placeIn(event);
    if (!drag) return hover(x, y);
    tip.style.display = "none";
    if (drag.kind === "pan") zoom(drag.from - timeAt(x) + timeAt(drag.x), drag.from - timeAt(x) + timeAt(drag.x) + span());
    drag.to = x;
    schedule();
  });
  canvas.addEventListener("pointerleave", () => (tip.style.display = "none"));
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button > 1) return;
    const [x, y] = placeIn(event);
    canvas.setPointerCapture(event.pointerId);
    const pans = event.shiftKey || event.button === 1 || y < AXIS;
    drag = { kind: pans ? "pan" : "zoom", x, y, to: x, from: state.from };
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!drag) return;
    const { kind: what, x } = drag, [to, y] = placeIn(event);
    drag = null;
    if (what === "zoom" && Math.abs(to - x) > 4) zoom(timeAt(Math.max(Math.min(x, to), left)), timeAt(Math.min(Math.max(x, to), width - right)));
    else {
      const found = pointed(to, y);
      if (found && found.item && found.item.type === "head") fold(!found.item.folded, found.item.number);
    }
    schedule();
  });
  canvas.addEventListener("dblclick", all);
  canvas.addEventListener("wheel", (event) => {
    const [x, y] = placeIn(event);
    if (event.ctrlKey || event.metaKey || y < top) {
      event.preventDefault();
      zoomBy(Math.exp(Math.max(Math.min(event.deltaY, 200), -200) * 0.003), timeAt(Math.max(x, left)));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      pan((event.deltaX || event.deltaY) / 1000);
    }
  }, { passive: false });
  view.addEventListener("scroll", () => { tip.style.display = "none"; schedule(); });
  view.addEventListener("keydown", (event) => {
    const keys = {
      "+": () => zoomBy(1 / 1.5), "=": () => zoomBy(1 / 1.5), "-": () => zoomBy(1.5), 0: all, ArrowLeft: () => pan(-0.15),
      ArrowRight: () => pan(0.15), ArrowUp: () => (view.scrollTop -= 60), ArrowDown: () => (view.scrollTop += 60),
      Escape: () => find(""), "/": () => element("search").focus(),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  });

  // ---- the tools above

  function setUpTools() {
    const legend = element("legend"), used = new Set(kind);
    const stripes = (colours) => colours.length < 2 ? colours[0]
      : `linear-gradient(90deg, ${colours.map((one, n) => `${one} ${(100 * n) / colours.length}% ${(100 * (n + 1)) / colours.length}%`).join(", ")})`;
    for (const [k, one] of kinds.entries()) {
      if (!used.has(k)) continue;
      const button = document.createElement("button"), key = document.createElement("i");
      key.style.background = stripes(one.colours);
      button.append(key, one.legend);
      button.dataset.kind = k;
      button.title = "hide or show";
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => hide(one.name, !state.hidden.has(k)));
      legend.append(button);
    }
    const says = (colour, words) => {
      const label = document.createElement("span"), key = document.createElement("i");
      key.style.background = colour;
      label.append(key, words);
      legend.append(label);
    };
    const computed = kinds.filter((one, k) => used.has(k) && k < 4);
    for (const [n, words] of head.chunks.entries()) says(stripes(computed.map((one) => one.colours[n])), words);
    says("var(--idle)", "idle (bubble)");
    let any = 0;
    for (const flag of flags) any |= flag;
    if (any & REROUTED) says("repeating-linear-gradient(135deg, #1f2430 0 1px, #cfd4dc 1px 4px)", "k.j: micro-batch j re-routed from pipeline k");
    if (any & LOST) says("#c4e5f7", "pale: in vain, it was done again");
    if (any & AGAIN) says("linear-gradient(var(--ground), var(--ground)) content-box, #6b7280", "framed: run again for its message alone");
    if (any & FED) says("linear-gradient(90deg, var(--ink) 35%, var(--grid) 35%)", "dark edge: begins with a kept message, sent again");
    if (tracks.some((track) => track.row.gaps)) says("var(--gone)", "worker not there");
    if (several && tracks.some((track) => track.row.memory)) head.labels.forEach((label, n) => says(`var(--curve${["", "2", "3"][Math.min(n, 2)]})`, `memory, ${label}`));
    const on = (id, does) => element(id).addEventListener("click", does);
    on("in", () => zoomBy(1 / 1.5));
    on("out", () => zoomBy(1.5));
    on("all", all);
    on("fit", () => { state.fit = !state.fit; element("fit").textContent = state.fit ? "full rows" : "fit rows"; layOut(); schedule(); });
    on("theme", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
    on("fold", () => fold(!head.groups.some((group, n) => group.pipelines.length > 1 && !state.unfolded.has(n))));
    element("fold").hidden = !head.groups.some((group) => group.pipelines.length > 1);
    element("search").addEventListener("input", (event) => find(event.target.value));
    element("search").addEventListener("keydown", (event) => {
      if (event.key === "Escape") find("");
      if (event.key === "Enter" && state.match && state.match.count) zoom(...[-0.1, 1.1].map((share) => state.match.from + share * (state.match.until - state.match.from)));
    });
    element("rows").addEventListener("input", (event) => select(event.target.value));
    element("times").addEventListener("change", (event) => { setTimes(event.target.value); event.target.value = ""; });
  }

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  top = AXIS + MARK_LINE * markLines();
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  setUpTools();
  layOut();
  if (head.groups.some((group) => group.pipelines.length > 1)) fold(true);
  draw();
  window.addEventListener("resize", () => { layOut(); schedule(); });
  let before = null;
  window.addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    setTheme("light");
    height = Math.min(top + (items.length ? items.at(-1).y + items.at(-1).height : 0) + 8, 16000 / (window.devicePixelRatio || 1));
    measure();
    draw(0, true);
  });
  window.addEventListener("afterprint", () => { setTheme(before); layOut(); schedule(); });

  Object.assign(window.rtk, {
    zoom, all, find, fold, hide, select, draw,
    state: () => ({
      from_s: state.from, until_s: state.until, operations: head.spans, theme: document.documentElement.dataset.theme,
      rows: items.filter((item) => item.type === "row").map(rowLabel), hidden: [...state.hidden].map((k) => kinds[k].name),
      heads: items.filter((item) => item.type === "head").map(headWords), found: state.match ? state.match.count : 0,
      peaks: Object.fromEntries(items.filter((item) => item.type === "band").map((item) => [item.worker, peaksOf(item)])),
      tip: tip.style.display === "block" ? tip.textContent : "",
    }),
    // Where on the screen an operation is, once its row is scrolled to: [x, y].
    place: (worker, op, number = 0, timeline = 0) => {
      showRow(worker);
      const item = places.get(`${timeline} ${worker}`), box = canvas.getBoundingClientRect();
      for (let i = item.track.first; i < item.track.stop; i++) {
        if (opOf(i, item.row) !== op || iteration[i] !== number) continue;
        return [box.left + xOf(((start[i] + end[i]) / 2) * tick), box.top + top + item.y + item.height / 2 - view.scrollTop];
      }
      return null;
    },
  });
  return true;
})();
