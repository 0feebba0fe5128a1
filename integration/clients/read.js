// Reads all bindings with the three JavaScript clients and prints the results, at the start and on every SIGUSR2.
//
// The argument is the directory that contains the clients.

const fs = require('fs');
const path = require('path');

const kube = require(path.join(process.argv[2], 'kube-service-bindings'));
const nebhale = require(path.join(process.argv[2], '@nebhale/service-bindings'));
const xsenv = require(path.join(process.argv[2], '@sap/xsenv'));

// Returns the result of a client, or its error.
async function found(read) {
  try {
    return await read();
  } catch (error) {
    return 'failed: ' + error.message;
  }
}

function kubeServiceBindings() {
  const sql = kube.getBinding('POSTGRESQL', 'pg');
  const all = kube.getBinding();
  return { sql, all: all.map((binding) => binding.name).sort() };
}

async function serviceBindings() {
  const all = nebhale.cached(await nebhale.fromServiceBindingRoot());
  const sql = await nebhale.filter(all, 'PostgreSQL');
  const get = async (binding, key) => (await binding.getAsBytes(key)).toString();
  return {
    all: all.map((binding) => binding.getName()).sort(),
    sql: await Promise.all(
      sql.map(async (binding) => ({
        name: binding.getName(),
        password: await get(binding, 'password'),
        certificate: (await binding.getAsBytes('certificates')).toString('hex'),
      }))
    ),
    provided: (await nebhale.filter(all, 'postgresql', 'postgresql')).length,
    other: (await nebhale.filter(all, 'mysql')).length,
  };
}

function sapXsenv() {
  const all = xsenv.readServices();
  return { all: Object.keys(all).sort(), sql: all['a-db'] };
}

async function printBindings() {
  const seen = {
    'kube-service-bindings': await found(kubeServiceBindings),
    '@nebhale/service-bindings': await found(serviceBindings),
    '@sap/xsenv': await found(sapXsenv),
  };
  fs.writeSync(1, 'READ ' + JSON.stringify(seen) + '\n');
}

process.on('SIGUSR2', printBindings);
setInterval(() => {}, 1 << 30);
printBindings();
