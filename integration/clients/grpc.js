// Makes calls over one persistent connection: reads lines of "METHOD REQUEST", the request in base64, and
// prints "OK" or the status of each answer.
//
// Usage: node grpc.js CLIENTS SOCKET. CLIENTS is the directory of the libraries.

const path = require('path');
const readline = require('readline');

const grpc = require(path.join(process.argv[2], '@grpc/grpc-js'));

const client = new grpc.Client('unix://' + process.argv[3], grpc.credentials.createInsecure());
const asIs = (bytes) => bytes;

function call(method, request) {
  return new Promise((answered) => {
    client.makeUnaryRequest(method, asIs, asIs, request, (error) => {
      answered(error ? grpc.status[error.code] + ' ' + error.details : 'OK');
    });
  });
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [method, request] = line.split(' ');
    console.log(await call(method, Buffer.from(request, 'base64')));
  }
}

main();
