// One process of the fleet, limited by Bottleneck with clustering through Redis.
// It speaks the JSON of worker.go: a job, hello, the moment to begin, a report.
'use strict';

const http = require('http');
const https = require('https');
const readline = require('readline');
const Bottleneck = require('bottleneck');

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const say = (what) => process.stdout.write(JSON.stringify(what) + '\n');
const micros = () => Number(process.hrtime.bigint() / 1000n);

// minTime keeps the distance of the rate with the shortest period. A reservoir
// keeps one other rate; its interval must be whole 5 s with clustering.
function limiter(job) {
  const rates = job.Rates.map((r) => ({ limit: r.Limit, ms: r.Per / 1e6 })).sort((a, b) => a.ms - b.ms);
  const options = { minTime: rates[0].ms / rates[0].limit };
  for (const { limit, ms } of rates.slice(1)) {
    if (options.reservoir !== undefined || ms % 5000 !== 0) throw new Error('rates that Bottleneck cannot keep');
    Object.assign(options, { reservoir: limit, reservoirRefreshAmount: limit, reservoirRefreshInterval: ms });
  }
  const [host, port] = job.Redis.split(':');
  return new Bottleneck({ id: 'benchmark', datastore: 'ioredis', clearDatastore: false, clientOptions: { host, port }, ...options });
}

function sender(job) {
  const kind = job.Cert ? https : http;
  const agent = new kind.Agent({ keepAlive: true, maxFreeSockets: job.AllIdle ? job.Callers : 2 });
  const options = { agent, ca: job.Cert || undefined, headers: { 'Benchmark-Worker': job.Worker } };
  return () => new Promise((done, fail) => {
    kind.get(job.URL, options, (res) => {
      res.resume();
      res.on('end', () => done(res));
      res.on('error', fail);
    }).on('error', fail);
  });
}

async function work(job, limited, send) {
  const report = { Micros: [], Refused: 0, Errors: 0, LastErr: '' };
  const failed = (err) => { report.Errors++; report.LastErr = String(err); };
  limited.on('error', failed);
  const deadline = Date.now() + job.Patience / 1e6;
  let left = job.Requests;
  const request = async () => {
    const asked = micros();
    while (Date.now() < deadline) {
      try {
        const res = await limited.schedule(send);
        if (res.statusCode === 200) {
          report.Micros.push(micros() - asked);
          return;
        }
        if (res.statusCode !== 429) throw new Error(res.statusCode);
        report.Refused++;
        await sleep(Math.max(1, Number(res.headers['retry-after'])) * 1000);
      } catch (err) {
        failed(err);
        await sleep(100);
      }
    }
  };
  const caller = async () => {
    while (left-- > 0 && Date.now() < deadline) await request();
  };
  // A job that Bottleneck never runs must not keep the report.
  await Promise.race([Promise.all(Array.from({ length: job.Callers }, caller)), sleep(job.Patience / 1e6)]);
  return report;
}

async function main() {
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  const job = JSON.parse((await lines.next()).value);
  const send = sender(job);
  let limited;
  try {
    limited = limiter(job);
    await limited.ready();
  } catch (err) {
    say({ Err: String(err) });
    return;
  }
  say({ Err: '' });
  const begin = JSON.parse((await lines.next()).value).UnixNano / 1e6;
  lines.next().then(({ done }) => done && process.exit(1)); // the benchmark is gone
  await sleep(Math.max(0, begin - Date.now()));
  const report = await work(job, limited, send);
  process.stdout.write(JSON.stringify(report) + '\n', () => process.exit(0));
}

main();
