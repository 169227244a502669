// Starts processes, two at a time, until CHILDREN have ended, or for SECONDS.
const { spawn } = require('child_process');

const end = Date.now() + 1000 * Number(process.argv[3]);
let left = Number(process.argv[2]);
let [children, bad, running] = [0, 0, 0];

function start() {
    if (left-- <= 0 || Date.now() >= end) {
        if (running === 0 && left > -9) {
            left = -9;
            console.log(`ended ${children} ${bad}`);
        }
        return;
    }
    running++;
    let isOver = false;
    const over = (how) => {
        if (isOver) {
            return;
        }
        isOver = true;
        running--;
        children++;
        if (how !== 0) {
            bad++;
            console.error(`a child has ended with ${how}`);
        }
        start();
    };
    const child = spawn('/bin/true', { stdio: 'ignore' });
    child.on('exit', (code, signal) => over(signal ?? code));
    child.on('error', over);
}

console.log('begun');
start();
start();
